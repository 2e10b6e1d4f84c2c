import { Addresses } from './addresses/addresses-operations.js';
import { Affinities } from './affinities/affinities-operations.js';
import { Audits } from './audit/audit-operations.js';
import type { IpamOptions } from './engine/updates/operation.js';
import { History } from './history/history-operations.js';
import { Nodes } from './nodes/nodes-operations.js';
import { Assignments } from './operations/assignments.js';
import { Blocks } from './operations/blocks.js';
import { Configuration } from './operations/configuration.js';
import { tellDrainedPools } from './operations/drained-pools.js';
import { Endpoints } from './operations/endpoints.js';
import { Handles } from './operations/handles.js';
import { RequestPolicyKeeper } from './policies/policies-operations.js';
import { Pools } from './pools/pools-operations.js';
import { Reservations } from './reservations/reservations-operations.js';

/**
 * What IPAM does, by subject. Each operation is a decision of `allocator/` handed to the store's update loop, and told to `events`
 * once it is durable. Every one fails with CONFLICT, STORE_UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED besides the failures
 * it names.
 */
export class Ipam {
  readonly addresses: Addresses;
  readonly assignments: Assignments;
  readonly handles: Handles;
  readonly affinities: Affinities;
  readonly history: History;
  readonly endpoints: Endpoints;
  readonly nodes: Nodes;
  readonly pools: Pools;
  readonly reservations: Reservations;
  readonly requestPolicies: RequestPolicyKeeper;
  readonly configuration: Configuration;
  readonly blocks: Blocks;
  readonly audits: Audits;

  constructor(options: IpamOptions) {
    const telling = { ...options, updates: tellDrainedPools(options) };
    this.addresses = new Addresses(telling);
    this.assignments = new Assignments(telling);
    this.handles = new Handles(telling);
    this.affinities = new Affinities(telling);
    this.history = new History(telling);
    this.endpoints = new Endpoints(telling);
    this.nodes = new Nodes(telling);
    this.pools = new Pools(options);
    this.reservations = new Reservations(telling);
    this.requestPolicies = new RequestPolicyKeeper(telling);
    this.configuration = new Configuration(telling);
    this.blocks = new Blocks(telling);
    this.audits = new Audits(telling);
  }
}
