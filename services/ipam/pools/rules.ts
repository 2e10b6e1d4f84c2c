import type { Violation } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { parsePrefix, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

import { subdomainFault } from '../records/names.js';
import { ALL, WORKLOAD, type EncapsulationMode, type Pool } from '../records/pool.js';
import { selectorFault, selectsAll } from '../selectors/selector.js';

/** A requested pool, unchecked. Omitted fields have Calico's defaults. */
export interface PoolRequest extends Partial<PoolRules> {
  readonly name: string;
  readonly cidr: string;
  /** Prefix length of the pool's blocks in bits; 0 for the family's default. */
  readonly blockSizeBits: number;
  readonly disabled: boolean;
}

/** The fields of a pool that can be changed. */
export const MUTABLE_FIELDS = [
  'disabled',
  'ipipMode',
  'vxlanMode',
  'natOutgoing',
  'disableBgpExport',
  'nodeSelector',
  'namespaceSelector',
  'allowedUses',
  'assignmentMode',
] as const;

export type MutableFields = Pick<Pool, (typeof MUTABLE_FIELDS)[number]>;

export type PoolRules = Omit<MutableFields, 'disabled'>;

/** All fields of a pool that an operator decides, validated. */
export type PoolSpec = PoolRules & Pick<Pool, 'name' | 'prefix' | 'blockSizeBits' | 'disabled'>;

type CheckedPool =
  | { readonly ok: true; readonly spec: PoolSpec }
  /** Every invalid field, by its name in {@link PoolRequest}. */
  | { readonly ok: false; readonly faults: readonly PoolFault[] };

export interface PoolFault extends Violation {
  readonly field: keyof PoolRequest;
}

/** Use of addresses by nodes' tunnels, among a pool's `allowedUses`. */
export const TUNNEL = 'Tunnel';

/** Use of addresses by services of type LoadBalancer, among a pool's `allowedUses`. */
export const LOAD_BALANCER = 'LoadBalancer';

const USES: readonly string[] = [WORKLOAD, TUNNEL, LOAD_BALANCER];
const MAX_USES = 10;
const MAX_CIDR_CHARACTERS = 48;

const DEFAULT_RULES: PoolRules = {
  ipipMode: 'Never',
  vxlanMode: 'Never',
  natOutgoing: false,
  disableBgpExport: false,
  nodeSelector: ALL,
  namespaceSelector: '',
  allowedUses: [WORKLOAD, TUNNEL],
  assignmentMode: 'Automatic',
};

/** Limits of block sizes in bits, and Calico's default of 64 addresses for both families. */
const BLOCK_SIZES: Record<Family, { readonly min: number; readonly max: number; readonly defaultBits: number }> = {
  4: { min: 20, max: 32, defaultBits: 26 },
  6: { min: 116, max: 128, defaultBits: 122 },
};

/** Ranges that mean the same on every host (RFC 6890, RFC 5771, RFC 4291). */
const SPECIAL_RANGES = [
  ['link-local', '169.254.0.0/16'],
  ['link-local', 'fe80::/10'],
  ['loopback', '127.0.0.0/8'],
  ['loopback', '::1/128'],
  ['multicast', '224.0.0.0/4'],
  ['multicast', 'ff00::/8'],
] as const;

/** Checks all of a pool's fields by the rules of Calico's API for IPPool. */
export function checkPool(request: PoolRequest): CheckedPool {
  const rules = withDefaults(request);
  const range = checkRange(request);
  const faults = [
    ...fault('name', subdomainFault(request.name)),
    ...range.faults,
    ...encapsulationFaults(rules, range.prefix?.family),
    ...selectorFaults(rules),
    ...useFaults(rules),
    ...fault('allowedUses', useCountFault(request.allowedUses)),
  ];
  if (faults.length > 0 || !range.prefix) return { ok: false, faults };
  const { name, disabled } = request;
  return { ok: true, spec: { ...rules, name, disabled, prefix: range.prefix, blockSizeBits: range.blockSizeBits } };
}

function withDefaults(request: PoolRequest): PoolRules {
  const rules = MUTABLE_FIELDS.reduce<PoolRules>((sum, field) => {
    const isSet = field !== 'disabled' && request[field] !== undefined;
    return isSet ? { ...sum, [field]: request[field] } : sum;
  }, DEFAULT_RULES);
  const { nodeSelector, allowedUses } = rules;
  return {
    ...rules,
    nodeSelector: nodeSelector.trim() === '' ? DEFAULT_RULES.nodeSelector : nodeSelector,
    allowedUses: allowedUses.length === 0 ? DEFAULT_RULES.allowedUses : [...new Set(allowedUses)],
  };
}

function fault(field: PoolFault['field'], reason: string | undefined): PoolFault[] {
  return reason === undefined ? [] : [{ field, reason }];
}

interface CheckedRange {
  /** Prefix; undefined when the text is not a CIDR. */
  readonly prefix: Prefix | undefined;
  readonly blockSizeBits: number;
  readonly faults: readonly PoolFault[];
}

function checkRange({ cidr, blockSizeBits, disabled }: PoolRequest): CheckedRange {
  const parsed = cidr.length > MAX_CIDR_CHARACTERS ? undefined : parsePrefix(cidr);
  if (!parsed?.ok) {
    const rangeReason = parsed ? parsed.fault : `longer than ${MAX_CIDR_CHARACTERS} characters`;
    const reason = rangeReason === 'has host bits set' ? rangeReason : `is ${rangeReason}, such as 10.65.0.0/16`;
    return { prefix: undefined, blockSizeBits, faults: fault('cidr', reason) };
  }
  const { prefix } = parsed;
  const { min, max, defaultBits } = BLOCK_SIZES[prefix.family];
  const size = blockSizeBits === 0 ? defaultBits : blockSizeBits;
  const isPossible = size >= min && size <= max;
  const sizeFault = `is ${size}; it must be from ${min} to ${max} for IPv${prefix.family}`;
  const isTooSmall = isPossible && size < prefix.length && !disabled;
  const rangeFault = `is smaller than one block of /${size}; choose a wider range or smaller blocks, or disable the pool`;
  const special = SPECIAL_RANGES.find(([, range]) => overlaps(prefix, range));
  const faults = [
    ...fault('blockSizeBits', isPossible ? undefined : sizeFault),
    ...fault('cidr', isTooSmall ? rangeFault : undefined),
    ...fault('cidr', special && `overlaps the ${special.join(' range ')}`),
  ];
  return { prefix, blockSizeBits: size, faults };
}

function overlaps(prefix: Prefix, range: string): boolean {
  const parsed = parsePrefix(range);
  return parsed.ok && prefixesOverlap(prefix, parsed.prefix);
}

const TUNNELLING: readonly EncapsulationMode[] = ['Always', 'CrossSubnet'];

function encapsulationFaults(rules: PoolRules, family: Family | undefined): PoolFault[] {
  const { ipipMode, vxlanMode } = rules;
  const ipip = TUNNELLING.includes(ipipMode);
  const vxlan = TUNNELLING.includes(vxlanMode);
  const isForLoadBalancers = rules.allowedUses.includes(LOAD_BALANCER);
  const forBalancers = `is for a pool of pods' or tunnels' addresses, and this one is for ${LOAD_BALANCER}; use Never`;
  return [
    ...fault('ipipMode', ipip && family === 6 ? `is ${ipipMode}, and IPIP carries no IPv6; use VXLAN` : undefined),
    ...fault(
      'ipipMode',
      ipip && vxlan ? `is ${ipipMode} and vxlan is ${vxlanMode}; one of them must be Never` : undefined,
    ),
    ...fault('ipipMode', ipip && isForLoadBalancers ? forBalancers : undefined),
    ...fault('vxlanMode', vxlan && isForLoadBalancers ? forBalancers : undefined),
  ];
}

function selectorFaults({ nodeSelector, namespaceSelector, allowedUses }: PoolRules): PoolFault[] {
  const malformed = selectorFault(nodeSelector);
  const tooNarrow =
    malformed === undefined && allowedUses.includes(LOAD_BALANCER) && !selectsAll(nodeSelector)
      ? `selects nodes, but addresses of a pool for ${LOAD_BALANCER} belong to no node; use all()`
      : undefined;
  const forTunnels =
    namespaceSelector.trim() !== '' && allowedUses.includes(TUNNEL)
      ? `selects namespaces, but tunnels have none; remove ${TUNNEL} from the allowed uses`
      : undefined;
  return [
    ...fault('nodeSelector', malformed ?? tooNarrow),
    ...fault('namespaceSelector', selectorFault(namespaceSelector)),
    ...fault('namespaceSelector', forTunnels),
  ];
}

function useCountFault(uses: readonly string[] = []): string | undefined {
  return uses.length > MAX_USES ? `has ${uses.length} entries; at most ${MAX_USES} are allowed` : undefined;
}

function useFaults({ allowedUses, disableBgpExport }: PoolRules): PoolFault[] {
  const unknown = allowedUses.filter((use) => !USES.includes(use));
  const isForLoadBalancers = allowedUses.includes(LOAD_BALANCER);
  return [
    ...fault(
      'allowedUses',
      unknown.length > 0 ? `has unknown uses ${unknown.join(', ')}; use ${USES.join(', ')}` : undefined,
    ),
    ...fault(
      'allowedUses',
      isForLoadBalancers && allowedUses.length > 1
        ? `has ${LOAD_BALANCER} and other uses; it must be the only one`
        : undefined,
    ),
    ...fault(
      'disableBgpExport',
      isForLoadBalancers && disableBgpExport
        ? `is set, but addresses for ${LOAD_BALANCER} are useless unless exported; unset it`
        : undefined,
    ),
  ];
}
