/** Requests about links → steps of the addon, every field checked. */
import { ArgumentError } from './errors.js';
import type { NativeNamespace, NativeStepBase } from './native.js';
import type { IpipAdd, LinkAdd, LinkSet, NewLink, VethAdd, VxlanAdd } from './requests.js';
import {
  checkAddress,
  checkAddressGeneration,
  checkFlag,
  checkInteger,
  checkIpv4Address,
  checkLinkName,
  checkMac,
  checkRecord,
  checkSelector,
  checkText,
  MTU,
  optional,
  PORT,
  QUEUE_COUNT,
  UINT32,
  VNI,
} from './scalars.js';

/** The addon's object behind an open namespace; undefined for any other value. */
export type NativeOf = (value: unknown) => NativeNamespace | undefined;

/** Position of a step in the caller's arguments, for messages, and options common to all steps. */
export interface Place {
  readonly path: string;
  readonly base: NativeStepBase;
}

const ALIAS_BYTES_MAX = 255;
const VXLAN_PORT = 4789;

function toNewLink(link: NewLink, path: string) {
  const count = (name: 'txQueueCount' | 'rxQueueCount') =>
    optional(link[name], (value) => checkInteger(`${path}.${name}`, value, QUEUE_COUNT));
  return {
    name: checkLinkName(`${path}.name`, link.name),
    mac: optional(link.mac, (mac) => checkMac(`${path}.mac`, mac)),
    mtuBytes: optional(link.mtuBytes, (mtu) => checkInteger(`${path}.mtuBytes`, mtu, MTU)),
    txQueueLength: optional(link.txQueueLength, (length) => checkInteger(`${path}.txQueueLength`, length, UINT32)),
    txQueueCount: count('txQueueCount'),
    rxQueueCount: count('rxQueueCount'),
  };
}

function toVeth({ kind, peer }: VethAdd, path: string, nativeOf: NativeOf) {
  checkRecord(`${path}.peer`, peer);
  const namespace = nativeOf(peer.namespace);
  if (!namespace) throw new ArgumentError(`${path}.peer.namespace`, 'must be an open Namespace');
  return { kind, peer: { namespace, ...toNewLink(peer, `${path}.peer`) } };
}

function toVxlan(step: VxlanAdd, path: string) {
  return {
    kind: step.kind,
    vni: checkInteger(`${path}.vni`, step.vni, VNI),
    port: checkInteger(`${path}.port`, step.port ?? VXLAN_PORT, PORT),
    local: checkAddress(`${path}.local`, step.local),
    parent: optional(step.parent, (parent) => checkSelector(`${path}.parent`, parent)),
  };
}

function toIpip({ kind, local }: IpipAdd, path: string) {
  return { kind, local: optional(local, (address) => checkIpv4Address(`${path}.local`, address)) };
}

function toKind(step: LinkAdd, path: string, nativeOf: NativeOf) {
  switch (step.kind) {
    case 'veth':
      return toVeth(step, path, nativeOf);
    case 'vxlan':
      return toVxlan(step, path);
    case 'ipip':
      return toIpip(step, path);
    default:
      throw new ArgumentError(`${path}.kind`, "must be 'veth', 'vxlan' or 'ipip'");
  }
}

export function toLinkAdd(step: LinkAdd, { path, base }: Place, nativeOf: NativeOf) {
  const kind = toKind(step, path, nativeOf);
  return { op: 'link.add', ...base, ...toNewLink(step, path), ...kind };
}

function checkAlias(path: string, value: unknown): string {
  const alias = checkText(path, value);
  if (Buffer.byteLength(alias) > ALIAS_BYTES_MAX) {
    throw new ArgumentError(path, `must have at most ${ALIAS_BYTES_MAX} bytes`);
  }
  return alias;
}

export function toLinkSet(step: LinkSet, { path, base }: Place) {
  return {
    op: 'link.set',
    ...base,
    link: checkSelector(`${path}.link`, step.link),
    up: optional(step.up, (up) => checkFlag(`${path}.up`, up)),
    mac: optional(step.mac, (mac) => checkMac(`${path}.mac`, mac)),
    mtuBytes: optional(step.mtuBytes, (mtu) => checkInteger(`${path}.mtuBytes`, mtu, MTU)),
    alias: optional(step.alias, (alias) => checkAlias(`${path}.alias`, alias)),
    group: optional(step.group, (group) => checkInteger(`${path}.group`, group, UINT32)),
    name: optional(step.name, (name) => checkLinkName(`${path}.name`, name)),
    txQueueLength: optional(step.txQueueLength, (length) => checkInteger(`${path}.txQueueLength`, length, UINT32)),
    addressGeneration: optional(step.addressGeneration, (mode) =>
      checkAddressGeneration(`${path}.addressGeneration`, mode),
    ),
  };
}
