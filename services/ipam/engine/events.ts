import { metrics, trace } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';
import { counted } from '@podwire/shared/words/counted';

import type { Allocation } from '../addresses/allocate.js';
import type { ReleasedAffinity } from '../affinities/affinities.js';
import type { Repaired } from '../audit/repair.js';
import type { TunnelEnd } from '../nodes/tunnels.js';
import type { IpamConfig, Reservation } from '../records/config.js';
import type { Endpoint, EndpointAddress } from '../records/endpoint.js';
import type { Node } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import { RULE_KINDS, type RequestPolicy } from '../records/request-policy.js';

/** What a request waited for. */
interface StoreAnswered {
  readonly operation: 'commit' | 'revision';
  readonly durationMs: number;
}

/** What a deleted node gave back. */
export interface NodeDeleted {
  readonly addressesCount: number;
  readonly blocksCount: number;
}

/** From when on it is the datastore for which a pod takes long, in milliseconds. */
const SLOW_STORE_MS = 1000;

const MS_PER_SECOND = 1000;

/** From a transaction in memory to one that is given up. */
const STORE_BUCKETS_SECONDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];

/** At most so many addresses of one event are named in the log. */
const LOGGED_ADDRESSES = 16;

/**
 * What happened, told once it is durable: a counter, a log line, attributes of the active span. Counters have few attributes
 * with few values; names of pods, nodes and addresses belong into logs and spans.
 */
export class Events {
  readonly #log: Logger;
  readonly #meter = metrics.getMeter('podwire-ipam');
  readonly #allocations = this.#counter('podwire.ipam.allocations', '{request}', 'Allocate requests by their result');
  readonly #addresses = this.#counter('podwire.ipam.addresses.allocated', '{address}', 'Addresses given');
  readonly #releases = this.#counter('podwire.ipam.addresses.released', '{address}', 'Addresses given back');
  readonly #blocks = this.#counter('podwire.ipam.blocks.claimed', '{block}', 'Blocks that became a node’s');
  readonly #borrowed = this.#counter(
    'podwire.ipam.addresses.borrowed',
    '{address}',
    'Addresses given from blocks that stay others’',
  );
  readonly #taken = this.#counter(
    'podwire.ipam.endpoints.replaced',
    '{endpoint}',
    'Endpoints taken over by a new sandbox',
  );
  readonly #endpointsLost = this.#counter(
    'podwire.store.endpoints.lost',
    '{endpoint}',
    'Servers of the datastore that were given up as they failed',
  );
  readonly #storeDuration = this.#meter.createHistogram('podwire.store.duration', {
    unit: 's',
    description: 'Time for which requests wait for the datastore',
    advice: { explicitBucketBoundaries: STORE_BUCKETS_SECONDS },
  });
  readonly #upkeepFailures = this.#counter('podwire.ipam.upkeep.failures', '{task}', 'Background work that failed');
  readonly #repairs = this.#counter('podwire.ipam.repairs', '{finding}', 'Findings of audits by what a repair came to');
  readonly #expired = this.#counter(
    'podwire.ipam.history.expired',
    '{entry}',
    'Entries of the history that were removed',
  );
  readonly #clocks = this.#counter('podwire.ipam.clocks.differ', '{look}', 'Looks that found another clock');
  readonly #affinities = this.#counter('podwire.ipam.affinities.released', '{affinity}', 'Claims of blocks that ended');
  readonly #pools = this.#counter('podwire.ipam.pools', '{pool}', 'Pools by what became of them');

  readonly #nodes = this.#counter('podwire.ipam.nodes', '{node}', 'Nodes by what became of them');
  readonly #reservations = this.#counter(
    'podwire.ipam.reservations',
    '{reservation}',
    'Reservations by what became of them',
  );

  readonly #requestPolicies = this.#counter(
    'podwire.ipam.request_policies',
    '{policy}',
    'Request policies by what became of them',
  );
  readonly #denials = this.#counter(
    'podwire.ipam.requests.denied',
    '{request}',
    'AuthorizeRequests that a policy denied; of Allocate the result tells it',
  );

  constructor(log: Logger) {
    this.#log = log;
  }

  /** An attachment got an address, or one of another family. */
  addressesAllocated({ endpoint, added, claimed, reclaimed, borrowed, replaced }: Allocation): void {
    this.#allocations.add(1, { result: 'allocated' });
    for (const family of added) this.#addresses.add(1, { family: `ipv${family}` });
    const facts = this.#describe(endpoint);
    this.#log.info(facts, `allocated ${facts['podwire.addresses'].join(', ')}`);
    for (const block of claimed) this.#blockClaimed(block, endpoint.nodeName);
    for (const block of reclaimed) this.#log.info(`block ${formatPrefix(block)} was another node’s, and empty`);
    for (const { family } of borrowed) this.#borrowed.add(1, { family: `ipv${family}` });
    if (replaced) this.#endpointReplaced(replaced);
  }

  /** A handle that is no attachment's got addresses, which may be none. */
  addressesAssigned(handleId: string, addresses: readonly EndpointAddress[]): void {
    for (const { address } of addresses) this.#addresses.add(1, { family: `ipv${address.family}` });
    if (addresses.length === 0) return;
    const texts = addresses.slice(0, LOGGED_ADDRESSES).map(({ address }) => formatAddress(address));
    const more = addresses.length > texts.length ? ` and ${addresses.length - texts.length} more` : '';
    this.#log.info({ 'podwire.handle': handleId }, `assigned ${texts.join(', ')}${more} to handle ${handleId}`);
  }

  /** An attachment asked again for what it holds. */
  allocationRepeated({ endpoint }: Allocation): void {
    this.#allocations.add(1, { result: 'repeated' });
    const facts = this.#describe(endpoint);
    this.#log.debug(facts, 'allocated already');
  }

  /** An allocation failed; the border logs the failure itself. */
  allocationFailed(error: unknown): void {
    this.#allocations.add(1, { result: error instanceof Failure ? error.code : 'INTERNAL' });
  }

  /** An attachment gave back what it held, which may be nothing. */
  addressesReleased(addresses: readonly Prefix[]): void {
    for (const { family } of addresses) this.#releases.add(1, { family: `ipv${family}` });
    const texts = addresses.map(formatAddress);
    trace.getActiveSpan()?.setAttribute('podwire.addresses', texts);
    if (texts.length > 0) this.#log.info({ 'podwire.addresses': texts }, `released ${texts.join(', ')}`);
    else this.#log.debug('nothing to release');
  }

  /** Blocks became a node's without an allocation. */
  blocksClaimed(blocks: readonly Prefix[], nodeName: string): void {
    for (const block of blocks) this.#blockClaimed(block, nodeName);
  }

  /** Claims of blocks ended, or were to end. */
  affinitiesReleased(released: readonly ReleasedAffinity[]): void {
    for (const { block, owner, result } of released) {
      this.#affinities.add(1, { result });
      const facts = { 'podwire.block': formatPrefix(block), 'podwire.node': owner.name };
      if (result === 'removed')
        this.#log.info(facts, `${owner.name} gave up block ${formatPrefix(block)}, which was empty`);
      if (result === 'disowned')
        this.#log.info(facts, `${owner.name} gave up block ${formatPrefix(block)}, whose addresses stay in use`);
    }
  }

  /** Entries of the history were older than it is kept. */
  historyExpired(day: Date, entriesCount: number): void {
    this.#expired.add(entriesCount);
    this.#log.info(
      `removed ${counted(entriesCount, 'entry', 'entries')} of the history from ${day.toISOString().slice(0, 10)}`,
    );
  }

  /** Another replica's clock and this one's differ. @param aheadMs - by how much that one is ahead; behind when negative */
  clocksDiffer(aheadMs: number): void {
    this.#clocks.add(1);
    const seconds = Math.round(Math.abs(aheadMs) / MS_PER_SECOND);
    this.#log.warn(
      `another replica’s clock is ${seconds} s ${aheadMs > 0 ? 'ahead of' : 'behind'} this one’s, or was when it released an address: cool-downs end early, and the history tells wrong times, until the clocks of all machines with podwire-ipam agree`,
    );
  }

  /** The owner of an address says something else of itself. */
  attributesSet(address: Address): void {
    const text = formatAddress(address);
    this.#log.info({ 'podwire.addresses': [text] }, `set the attributes of ${text}`);
  }

  poolCreated({ name, prefix, blockSizeBits }: Pool): void {
    this.#pools.add(1, { event: 'created' });
    const text = `created pool "${name}" ${formatPrefix(prefix)} with blocks of /${blockSizeBits}`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  poolUpdated({ name, prefix }: Pool): void {
    this.#pools.add(1, { event: 'updated' });
    this.#log.info({ 'podwire.pool': name }, `changed pool "${name}" ${formatPrefix(prefix)}`);
  }

  poolSplit({ name, prefix }: Pool, partsCount: number): void {
    this.#pools.add(1, { event: 'split' });
    this.#log.info({ 'podwire.pool': name }, `split pool "${name}" ${formatPrefix(prefix)} into ${partsCount}`);
  }

  /** A pool is to be deleted, and waits for the release of its addresses. */
  poolDraining({ name, prefix }: Pool): void {
    this.#pools.add(1, { event: 'draining' });
    this.#log.info(
      { 'podwire.pool': name },
      `pool "${name}" ${formatPrefix(prefix)} goes with the last of its addresses`,
    );
  }

  poolDeleted({ name, prefix }: Pool, removedBlocksCount: number): void {
    this.#pools.add(1, { event: 'deleted' });
    const text = `deleted pool "${name}" ${formatPrefix(prefix)} and its ${counted(removedBlocksCount, 'empty block')}`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  /** A pool that was to be deleted has gone with the last of its addresses. */
  poolDrained({ name, prefix }: Pool): void {
    this.#pools.add(1, { event: 'deleted' });
    const text = `deleted pool "${name}" ${formatPrefix(prefix)} with the release of its last address`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  /** Work in the background failed; it is tried again. */
  upkeepFailed(task: string, error: unknown): void {
    this.#upkeepFailures.add(1, { task });
    this.#log.warn({ err: error, 'podwire.task': task }, `failed to ${task}; trying again later`);
  }

  /** Faults of the datastore were looked at to be repaired; nothing is said of those that were only to be shown. */
  repaired(results: readonly Repaired[]): void {
    for (const { finding, result } of results) {
      if (result.state === 'possible') continue;
      this.#repairs.add(1, { kind: finding.kind, result: result.state });
      const facts = { 'podwire.finding': finding.id };
      if (result.state === 'repaired') this.#log.info(facts, `repaired: ${finding.explanation}; ${result.effect}`);
    }
  }

  nodeRegistered({ name }: Node): void {
    this.#nodes.add(1, { event: 'registered' });
    this.#log.info({ 'podwire.node': name }, `registered node ${name}`);
  }

  /** What is known of a node differs: its addresses or its labels. */
  nodeChanged({ name }: Node): void {
    this.#nodes.add(1, { event: 'changed' });
    this.#log.info({ 'podwire.node': name }, `changed node ${name}`);
  }

  nodeDeleted({ name }: Node, { addressesCount, blocksCount }: NodeDeleted): void {
    this.#nodes.add(1, { event: 'deleted' });
    const given = `${counted(addressesCount, 'address', 'addresses')} and ${counted(blocksCount, 'block')}`;
    const text = `deleted node ${name}, which gave back ${given}`;
    this.#log.info({ 'podwire.node': name }, text);
  }

  /** The deletion of a pool that nobody waits for any more failed; it is taken up again later. */
  poolDeletionFailed({ name }: Pool, error: unknown): void {
    this.#upkeepFailures.add(1, { task: 'finish pool deletions' });
    this.#log.warn({ err: error, 'podwire.pool': name }, `failed to delete pool "${name}"; trying again later`);
  }

  /** The deletion of a node that nobody waits for any more failed; it is taken up again later. */
  nodeDeletionFailed({ name }: Node, error: unknown): void {
    this.#upkeepFailures.add(1, { task: 'finish node deletions' });
    this.#log.warn({ err: error, 'podwire.node': name }, `failed to delete node ${name}; trying again later`);
  }

  tunnelAssigned({ nodeName, kind }: TunnelEnd, address: Prefix): void {
    const text = formatAddress(address);
    const facts = { 'podwire.node': nodeName, 'podwire.addresses': [text] };
    trace.getActiveSpan()?.setAttributes(facts);
    this.#log.info(facts, `gave ${text} to the tunnel of node ${nodeName} (${kind})`);
  }

  requestPolicyChanged(event: 'created' | 'updated' | 'deleted', { name, rules }: RequestPolicy): void {
    this.#requestPolicies.add(1, { event });
    const kinds = RULE_KINDS.filter((kind) => rules[kind] !== undefined);
    this.#log.info(
      { 'podwire.request_policy': name },
      `${event} request policy "${name}" with rules for ${kinds.join(', ')}`,
    );
  }

  /** A pod may not have what it asks for without Allocate. */
  requestsDenied(failure: Failure): void {
    this.#denials.add(1);
    this.#log.warn({ err: failure }, 'requests of a pod denied');
  }

  reservationChanged(event: 'created' | 'updated' | 'deleted', { name, prefixes }: Reservation): void {
    this.#reservations.add(1, { event });
    const facts = { 'podwire.reservation': name };
    this.#log.info(
      facts,
      `${event} reservation "${name}" of ${counted(prefixes.length, 'address or range', 'addresses or ranges')}`,
    );
  }

  configChanged(config: IpamConfig): void {
    this.#log.info({ 'podwire.config': config }, 'changed the configuration');
  }

  /** A run of the garbage collection came to its limit, and the rest has to wait. */
  garbageLeft(limit: number): void {
    this.#log.warn(`there was more garbage in the datastore than one run removes (${limit}); the next goes on`);
  }

  /** A record of the datastore cannot be read: it is set aside, and the rest goes on being served. */
  recordUnreadable(key: string, failure: Failure): void {
    this.#log.error({ err: failure, 'podwire.store.key': key }, failure.message);
  }

  /** A server of the datastore's cluster answers, and is used from now on. */
  storeEndpointChosen(endpoint: string): void {
    this.#log.info({ 'server.address': endpoint }, `the datastore is used at ${endpoint}`);
  }

  /** The server of the datastore's cluster that was in use fails; another is looked for. */
  storeEndpointLost(endpoint: string, failure: Failure): void {
    this.#endpointsLost.add(1);
    this.#log.warn({ err: failure, 'server.address': endpoint }, failure.message);
  }

  /** The datastore answered what a request waited for, or failed it. */
  storeAnswered({ operation, durationMs }: StoreAnswered): void {
    this.#storeDuration.record(durationMs / MS_PER_SECOND, { operation });
    if (durationMs < SLOW_STORE_MS) return;
    const facts = { 'podwire.store.operation': operation, elapsed_ms: durationMs };
    this.#log.warn(facts, `requests waited ${durationMs} ms for the datastore, for a ${operation}`);
  }

  /** The files with credentials for the datastore cannot be used as they are now; those that were read before are. */
  storeCredentialsRefused(failure: Failure): void {
    this.#log.warn({ err: failure }, `the datastore is asked with the credentials of before: ${failure.message}`);
  }

  /** The certificate for the datastore's cluster ends soon, or has ended, and nobody has renewed it. */
  storeCertificateEnding(end: Date, hasEnded: boolean): void {
    const when = `${hasEnded ? 'has expired' : 'expires'} at ${end.toISOString()}`;
    this.#log.warn(
      `the certificate of PODWIRE_IPAM_ETCD_CERT_FILE ${when}, from when on etcd refuses new connections: renew it and its key, the files are read again by themselves`,
    );
  }

  /** The datastore is not the one that was read before: nothing is served from it until a restart. */
  datastoreReplaced(failure: Failure): void {
    this.#log.error({ err: failure }, `refusing every request for good: ${failure.message}`);
  }

  /** The datastore does not answer while the service starts; it is asked again. */
  datastoreAwaited(failure: Failure): void {
    this.#log.warn({ err: failure }, `waiting for the datastore: ${failure.message}`);
  }

  /** The datastore's changes are not seen for a while. */
  watchFailed(error: unknown, retryInMs: number): void {
    this.#log.warn({ err: error }, `the watch of the datastore broke; trying again in ${Math.round(retryInMs)} ms`);
  }

  /** The datastore was read anew, as its watch had fallen behind. */
  listedAgain(revision: number): void {
    this.#log.warn(
      { 'podwire.store.revision': revision },
      'the watch of the datastore fell behind; read everything again',
    );
  }

  #blockClaimed(block: Prefix, nodeName: string): void {
    this.#blocks.add(1, { family: `ipv${block.family}` });
    const cidr = formatPrefix(block);
    this.#log.info({ 'podwire.block': cidr, 'podwire.node': nodeName }, `node ${nodeName} claimed block ${cidr}`);
  }

  #endpointReplaced(replaced: Attachment): void {
    this.#taken.add(1);
    this.#log.info(
      `took over the endpoint of ${formatAttachment(replaced)}, which keeps its addresses until its release`,
    );
  }

  #describe(endpoint: Endpoint) {
    const facts = {
      'podwire.node': endpoint.nodeName,
      'podwire.addresses': endpoint.addresses.map(({ address }) => formatAddress(address)),
    };
    trace.getActiveSpan()?.setAttributes(facts);
    return facts;
  }

  #counter(name: string, unit: string, description: string) {
    return this.#meter.createCounter(name, { unit, description });
  }
}
