import { prefixOf, splitCidr, type Prefix } from '@podwire/shared/net/prefix';
import type { Direction, PortRange, RuleAction } from '@podwire/shared/network-policy/policy';
import type { AddressRange } from '@podwire/shared/network-policy/ranges';
import { z } from 'zod';

import type { LabelSelector } from './label-selector.js';

/** A network policy of either kind as its object has it, before its selectors are resolved. */
export interface PolicySpec {
  /** As an operator finds it: `NetworkPolicy default/web`. */
  readonly name: string;
  /** Namespace of a NetworkPolicy; undefined for a ClusterNetworkPolicy. */
  readonly namespace: string | undefined;
  readonly tier: 'admin' | 'policy' | 'baseline';
  /** 0 to 1000, the lowest first; 0 for a NetworkPolicy. */
  readonly priority: number;
  readonly subject: PodSelector;
  /** Undefined: the policy does not concern this direction. */
  readonly rules: Readonly<Record<Direction, readonly RuleSpec[] | undefined>>;
  /** Invalid parts of the object, which open nothing. */
  readonly faults: readonly string[];
}

/** Pods of one namespace, or of the namespaces with some labels. */
export interface PodSelector {
  readonly namespaces: string | LabelSelector;
  readonly pods: LabelSelector;
}

export interface RuleSpec {
  readonly action: RuleAction;
  /** Undefined: every address. An empty list matches none. */
  readonly peers: { readonly pods: readonly PodSelector[]; readonly networks: readonly AddressRange[] } | undefined;
  /** Undefined: every protocol and port. An empty list matches none. */
  readonly ports: { readonly ranges: readonly PortRange[]; readonly names: readonly PortName[] } | undefined;
}

/** Stands for a rule that is not understood and must not allow anything, so that later rules keep their positions. */
export const NO_MATCH: RuleSpec = { action: 'accept', peers: { pods: [], networks: [] }, ports: undefined };

/** A port that the destination pod names. */
export interface PortName {
  readonly name: string;
  /** IANA's number; undefined for each protocol that the pod has a port of this name for. */
  readonly protocol: number | undefined;
}

export const EVERY_PORT = { first: 0, last: 65_535 } as const;

/** Both kinds of policies may have bits after the prefix, which are ignored. */
export function readCidr(text: string): Prefix | undefined {
  const parts = splitCidr(text);
  return parts && prefixOf(parts.address, parts.length);
}
/** The fields of a rule that have its peers. */
export const PEER_FIELDS = { ingress: 'from', egress: 'to' } as const;

const objectSchema = z.looseObject({});

/** Why a part of a policy, such as `ingress[0].from[1]`, is not understood. */
export function faultOf(field: string, noun: string, part: unknown, knownKeys: readonly string[]): string {
  const unknownKeys = Object.keys(objectSchema.safeParse(part).data ?? {}).filter((key) => !knownKeys.includes(key));
  if (unknownKeys.length === 0) return `${field} is not a ${noun} that this release knows`;
  return `${field}: ${unknownKeys.join(', ')} ${unknownKeys.length === 1 ? 'is' : 'are'} not known to this release`;
}
