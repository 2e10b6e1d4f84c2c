import { suggestion } from '@podwire/shared/words/closest';

import type { Form } from '../command-line/forms.js';
import type { Kind, Resource } from './resource.js';

/** A kind, whose code is loaded when it is needed. */
export interface KindEntry extends Kind {
  readonly definition: () => Promise<(kind: Kind) => Resource>;
}

/** Every kind of resource. */
export const KINDS: readonly KindEntry[] = [
  {
    kind: 'IPPool',
    apiVersion: 'projectcalico.org/v3',
    names: ['ippool', 'ippools', 'ipp', 'ipps', 'pool', 'pools'],
    about: 'ranges that addresses are allocated from, with settings and utilisation',
    definition: async () => (await import('./ippool.js')).IP_POOL,
  },
  {
    kind: 'IPReservation',
    apiVersion: 'projectcalico.org/v3',
    names: ['ipreservation', 'ipreservations', 'reservation', 'reservations'],
    about: 'addresses that are allocated only on request of the address itself',
    definition: async () => (await import('./ipreservation.js')).IP_RESERVATION,
  },
  {
    kind: 'IPAMConfiguration',
    apiVersion: 'projectcalico.org/v3',
    names: ['ipamconfig', 'ipamconfigs', 'ipamconfiguration', 'ipamconfigurations'],
    about: 'the settings of the cluster’s allocation, of the name default',
    definition: async () => (await import('./ipamconfig.js')).IPAM_CONFIG,
  },
  {
    kind: 'Node',
    apiVersion: 'projectcalico.org/v3',
    names: ['node', 'nodes', 'no', 'nos'],
    about: 'the registered nodes, with their blocks and addresses',
    definition: async () => (await import('./node.js')).NODE,
  },
  {
    kind: 'WorkloadEndpoint',
    apiVersion: 'projectcalico.org/v3',
    names: ['workloadendpoint', 'workloadendpoints', 'wep', 'weps'],
    about: 'pods with addresses, node, interface and writer, also as Calico stored them',
    definition: async () => (await import('./workloadendpoint.js')).WORKLOAD_ENDPOINT,
  },
  {
    kind: 'Block',
    apiVersion: 'podwire.dev/v1',
    names: ['block', 'blocks', 'ipamblock', 'ipamblocks'],
    about: 'the blocks of pools, with node and utilisation',
    definition: async () => (await import('./block.js')).BLOCK,
  },
  {
    kind: 'Address',
    apiVersion: 'podwire.dev/v1',
    names: ['address', 'addresses', 'ip', 'ips'],
    about: 'the addresses in use, with their owners',
    definition: async () => (await import('./block.js')).ADDRESS,
  },
  {
    kind: 'BlockAffinity',
    apiVersion: 'projectcalico.org/v3',
    names: ['blockaffinity', 'blockaffinities', 'affinity', 'affinities'],
    about: 'the claims of blocks by nodes; create claims every block of a range',
    definition: async () => (await import('./affinity.js')).BLOCK_AFFINITY,
  },
  {
    kind: 'Handle',
    apiVersion: 'podwire.dev/v1',
    names: ['handle', 'handles', 'ipamhandle', 'ipamhandles'],
    about: 'owners of addresses, NETWORK.CONTAINER for containers; delete releases them',
    definition: async () => (await import('./handle.js')).HANDLE,
  },
  {
    kind: 'RequestPolicy',
    apiVersion: 'podwire.dev/v1',
    names: ['policy', 'policies', 'requestpolicy', 'requestpolicies'],
    about: 'requests that pods of a namespace may make',
    definition: async () => (await import('./policy.js')).REQUEST_POLICY,
  },
  {
    kind: 'RevokedCertificate',
    apiVersion: 'podwire.dev/v1',
    names: ['revokedcertificate', 'revokedcertificates'],
    about: 'certificates of callers that podwire-ipam refuses',
    definition: async () => (await import('./revokedcertificate.js')).REVOKED_CERTIFICATE,
  },
];

export async function loadResource(entry: KindEntry): Promise<Resource> {
  return (await entry.definition())(entry);
}

const PLURALS = KINDS.map(({ names: [, plural] }) => plural).join(', ');

const NAMES = KINDS.flatMap(({ names }) => names);

/** A kind, by any of its names, in upper or lower case. */
export const KIND: Form<KindEntry> = {
  placeholder: 'KIND',
  words: NAMES,
  read: (input) => {
    const name = input.toLowerCase();
    const value = KINDS.find(({ names, kind }) => names.includes(name) || kind.toLowerCase() === name);
    return value ? { ok: true, value } : { ok: false, fault: `is not one of ${PLURALS}${suggestion(name, NAMES)}` };
  },
};

/** The kinds, for the help. */
export const KINDS_TEXT = KINDS.map(({ names: [, ...names], about }) => `  ${names.join(', ')}\n      ${about}`).join(
  '\n',
);
