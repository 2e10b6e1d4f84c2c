import { AddressUse, AssignmentMode, EncapsulationMode, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';

import { oneOf, text, wholeNumber, YES_OR_NO } from '../command-line/forms.js';
import type { Input, Option, Positional } from '../command-line/verb.js';

export const POOL_NAME: Positional<string> = { form: text('NAME'), about: 'name of the pool', presence: 'required' };

/** Refuses a change of what somebody else changed since. */
export const RESOURCE_VERSION: Option<string> = {
  name: '--resource-version',
  form: text('VERSION'),
  about: 'only if the object still has this version, as "show --output json" prints it',
};

const ENCAPSULATION = oneOf({
  never: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
  always: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
  'cross-subnet': EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
});

export const BLOCK_SIZE: Option<number> = {
  name: '--block-size',
  form: wholeNumber('BITS', { min: 20, max: 128 }),
  about:
    'prefix length of its blocks, which cannot be changed later: 20 to 32 (26) for IPv4, 116 to 128 (122) for IPv6',
};

const DISABLED: Option<boolean> = {
  name: '--disabled',
  form: YES_OR_NO,
  about: 'give no address; those in use stay valid (false)',
};
const IPIP: Option<EncapsulationMode> = {
  name: '--ipip',
  form: ENCAPSULATION,
  about: 'when packets to other nodes travel in IPIP (never)',
};
const VXLAN: Option<EncapsulationMode> = {
  name: '--vxlan',
  form: ENCAPSULATION,
  about: 'when packets to other nodes travel in VXLAN (never)',
};
const NAT: Option<boolean> = {
  name: '--nat-outgoing',
  form: YES_OR_NO,
  about: 'whether what leaves the pools has the node’s address (false)',
};
const NO_EXPORT: Option<boolean> = {
  name: '--disable-bgp-export',
  form: YES_OR_NO,
  about: 'whether BGP peers are not told of it (false)',
};
const NODE_SELECTOR: Option<string> = {
  name: '--node-selector',
  form: text('SELECTOR'),
  about: "the nodes that it serves, in Calico's selector language (all())",
};
const NAMESPACE_SELECTOR: Option<string> = {
  name: '--namespace-selector',
  form: text('SELECTOR'),
  about: 'the namespaces that it serves (all)',
};
const USE: Option<AddressUse> = {
  name: '--use',
  form: oneOf({
    workload: AddressUse.ADDRESS_USE_WORKLOAD,
    tunnel: AddressUse.ADDRESS_USE_TUNNEL,
    'load-balancer': AddressUse.ADDRESS_USE_LOAD_BALANCER,
  }),
  about: 'what its addresses are for (workload and tunnel)',
  repeated: true,
};
const ASSIGNMENT: Option<AssignmentMode> = {
  name: '--assignment',
  form: oneOf({
    automatic: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC,
    manual: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
  }),
  about: 'whether it serves only those who name it (automatic)',
};

/** What can be said of a pool when it is made, and later. */
export const POOL_OPTIONS: readonly Option<unknown>[] = [
  DISABLED,
  IPIP,
  VXLAN,
  NAT,
  NO_EXPORT,
  NODE_SELECTOR,
  NAMESPACE_SELECTOR,
  USE,
  ASSIGNMENT,
];

export interface PoolChange {
  readonly fields: Partial<Pool>;
  /** Names of the fields in the contract. */
  readonly mask: string[];
}

/** What was said of a pool, and of which of its fields. */
export function readPoolOptions(input: Input): PoolChange {
  const fields: Partial<Pool> = {};
  const mask: string[] = [];
  const take = <Value>(option: Option<Value>, name: string, put: (value: Value) => void): void => {
    const value = input.get(option);
    if (value === undefined) return;
    put(value);
    mask.push(name);
  };
  take(DISABLED, 'disabled', (value) => (fields.disabled = value));
  take(IPIP, 'ipip_mode', (value) => (fields.ipipMode = value));
  take(VXLAN, 'vxlan_mode', (value) => (fields.vxlanMode = value));
  take(NAT, 'nat_outgoing', (value) => (fields.natOutgoing = value));
  take(NO_EXPORT, 'disable_bgp_export', (value) => (fields.disableBgpExport = value));
  take(NODE_SELECTOR, 'node_selector', (value) => (fields.nodeSelector = value));
  take(NAMESPACE_SELECTOR, 'namespace_selector', (value) => (fields.namespaceSelector = value));
  take(USE, 'allowed_uses', () => (fields.allowedUses = input.all(USE)));
  take(ASSIGNMENT, 'assignment_mode', (value) => (fields.assignmentMode = value));
  return { fields, mask };
}
