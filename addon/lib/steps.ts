/** Requests of the API → steps of the addon, every field checked. */
import { ArgumentError } from './errors.js';
import { toLinkAdd, toLinkSet, type NativeOf, type Place } from './link-steps.js';
import type { NativeStep } from './native.js';
import type {
  AddressRequest,
  FdbRequest,
  NeighbourRequest,
  QdiscReplace,
  RouteRequest,
  RuleRequest,
  Step,
  SysctlSetting,
  SysctlWrite,
} from './requests.js';
import {
  checkAddress,
  checkAddressLike,
  checkFlag,
  checkInteger,
  checkMac,
  checkPrefix,
  checkRecord,
  checkRouteType,
  checkScope,
  checkSelector,
  checkSysctlKey,
  checkText,
  HANDLE,
  optional,
  RATE,
  TABLE,
  UINT32,
  UINT32_POSITIVE,
  UINT8,
} from './scalars.js';

const SCOPE_GLOBAL = 0;
const SCOPE_LINK = 253;
const SCOPE_NOWHERE = 255;
const PROTOCOL_STATIC = 4;
const PROTOCOL_ANY = 0;
const TABLE_MAIN = 254;
const ROUTE_TYPE_UNICAST = 1;
const ROUTE_TYPE_ANY = 0;

/** `add` of `route.add`. */
function verbOf({ type }: Step): string {
  return type.slice(type.indexOf('.') + 1);
}

function toFdb(step: FdbRequest, { path, base }: Place) {
  return {
    op: 'fdb',
    verb: verbOf(step),
    ...base,
    link: checkSelector(`${path}.link`, step.link),
    mac: checkMac(`${path}.mac`, step.mac),
    destination: optional(step.destination, (address) => checkAddress(`${path}.destination`, address)),
  };
}

function toAddress(step: AddressRequest, { path, base }: Place) {
  return {
    op: 'address',
    verb: verbOf(step),
    ...base,
    link: checkSelector(`${path}.link`, step.link),
    ...checkPrefix(`${path}.address`, step.address),
    scope: checkScope(`${path}.scope`, step.scope ?? SCOPE_GLOBAL),
    noDad: checkFlag(`${path}.noDad`, step.noDad),
  };
}

/** The scope that `ip route` chooses by default. */
function defaultScope(step: RouteRequest, verb: string): number {
  if (verb === 'delete') return SCOPE_NOWHERE;
  return step.gateway === undefined && step.output !== undefined ? SCOPE_LINK : SCOPE_GLOBAL;
}

function toRoute(step: RouteRequest, { path, base }: Place) {
  const verb = verbOf(step);
  const { address: destination, prefixLengthBits } = checkPrefix(`${path}.destination`, step.destination);
  const protocol = step.protocol ?? (verb === 'delete' ? PROTOCOL_ANY : PROTOCOL_STATIC);
  const routeType = step.routeType ?? (verb === 'delete' ? ROUTE_TYPE_ANY : ROUTE_TYPE_UNICAST);
  return {
    op: 'route',
    verb,
    ...base,
    destination,
    prefixLengthBits,
    output: optional(step.output, (output) => checkSelector(`${path}.output`, output)),
    gateway: optional(step.gateway, (gateway) => checkAddressLike(`${path}.gateway`, gateway, destination)),
    source: optional(step.source, (source) => checkAddressLike(`${path}.source`, source, destination)),
    scope: checkScope(`${path}.scope`, step.scope ?? defaultScope(step, verb)),
    protocol: checkInteger(`${path}.protocol`, protocol, UINT8),
    table: checkInteger(`${path}.table`, step.table ?? TABLE_MAIN, UINT32),
    metric: optional(step.metric, (metric) => checkInteger(`${path}.metric`, metric, UINT32)),
    routeType: checkRouteType(`${path}.routeType`, routeType),
    onlink: checkFlag(`${path}.onlink`, step.onlink),
  };
}

function toRule(step: RuleRequest, { path, base }: Place) {
  const verb = verbOf(step);
  const { address: source, prefixLengthBits: sourceLengthBits } = checkPrefix(`${path}.source`, step.source);
  const protocol = step.protocol ?? (verb === 'delete' ? undefined : PROTOCOL_STATIC);
  return {
    op: 'rule',
    verb,
    ...base,
    source,
    sourceLengthBits,
    table: checkInteger(`${path}.table`, step.table, TABLE),
    priority: optional(step.priority, (priority) => checkInteger(`${path}.priority`, priority, UINT32)),
    protocol: optional(protocol, (number) => checkInteger(`${path}.protocol`, number, UINT8)),
  };
}

function toNeighbour(step: NeighbourRequest, { path, base }: Place) {
  const verb = verbOf(step);
  const proxy = checkFlag(`${path}.proxy`, step.proxy);
  const mac = optional(step.mac, (value) => checkMac(`${path}.mac`, value));
  if (mac === null && !proxy && verb !== 'delete') {
    throw new ArgumentError(`${path}.mac`, 'must be given, as the entry is no proxy entry');
  }
  return {
    op: 'neighbour',
    verb,
    ...base,
    link: checkSelector(`${path}.link`, step.link),
    address: checkAddress(`${path}.address`, step.address),
    mac,
    proxy,
  };
}

function toQdiscReplace(step: QdiscReplace, { path, base }: Place) {
  checkRecord(`${path}.tbf`, step.tbf);
  const { rateBytesPerSecond, burstBytes, limitBytes } = step.tbf;
  return {
    op: 'qdisc',
    verb: 'replace',
    ...base,
    link: checkSelector(`${path}.link`, step.link),
    handle: checkInteger(`${path}.handle`, step.handle, HANDLE) * 2 ** 16,
    tbf: {
      rateBytesPerSecond: checkInteger(`${path}.tbf.rateBytesPerSecond`, rateBytesPerSecond, RATE),
      burstBytes: checkInteger(`${path}.tbf.burstBytes`, burstBytes, UINT32_POSITIVE),
      limitBytes: checkInteger(`${path}.tbf.limitBytes`, limitBytes, UINT32_POSITIVE),
    },
  };
}

type SysctlOrder = SysctlSetting & Pick<SysctlWrite, 'readPrevious'>;

export function toSysctlWrite({ key, value, readPrevious }: SysctlOrder, { path, base }: Place) {
  return {
    op: 'sysctl.write',
    ...base,
    path: checkSysctlKey(`${path}.key`, key),
    value: checkText(`${path}.value`, value),
    readPrevious: checkFlag(`${path}.readPrevious`, readPrevious),
  };
}

/** One step, with every field checked; throws {@link ArgumentError} with the path of the first bad one. */
export function toNativeStep(step: Step, path: string, nativeOf: NativeOf): NativeStep {
  checkRecord(path, step);
  const within = optional(step.within, nativeOf);
  if (within === undefined) throw new ArgumentError(`${path}.within`, 'must be an open Namespace');
  const place = { path, base: { optional: checkFlag(`${path}.optional`, step.optional), within } };
  switch (step.type) {
    case 'link.add':
      return toLinkAdd(step, place, nativeOf);
    case 'link.set':
      return toLinkSet(step, place);
    case 'link.delete':
    case 'link.get':
      return { op: step.type, ...place.base, link: checkSelector(`${path}.link`, step.link) };
    case 'address.add':
    case 'address.replace':
    case 'address.delete':
      return toAddress(step, place);
    case 'route.add':
    case 'route.replace':
    case 'route.delete':
      return toRoute(step, place);
    case 'rule.add':
    case 'rule.delete':
      return toRule(step, place);
    case 'neighbour.add':
    case 'neighbour.replace':
    case 'neighbour.delete':
      return toNeighbour(step, place);
    case 'fdb.add':
    case 'fdb.replace':
    case 'fdb.append':
    case 'fdb.delete':
      return toFdb(step, place);
    case 'qdisc.replace':
      return toQdiscReplace(step, place);
    case 'qdisc.delete': {
      const link = checkSelector(`${path}.link`, step.link);
      return { op: 'qdisc', verb: 'delete', ...place.base, link, handle: 0, tbf: null };
    }
    case 'qdisc.get':
      return { op: step.type, ...place.base, link: checkSelector(`${path}.link`, step.link) };
    case 'sysctl.write':
      return toSysctlWrite(step, place);
    default:
      throw new ArgumentError(`${path}.type`, 'must be a type of request');
  }
}
