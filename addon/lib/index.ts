/**
 * Raw rtnetlink for Node.js: links, addresses, routes, neighbours and sysctls of any network namespace.
 *
 * No call blocks the event loop; every method that touches the kernel returns a promise. Nothing here knows of pods.
 */
export { ArgumentError, NamespaceClosedError, NetlinkError, NotANetworkNamespaceError } from './errors.js';
export type { Monitor, MonitorEvent, MonitorGroup } from './monitor.js';
export { openNamespace } from './namespace.js';
export type { AddressFilter, Namespace, NeighbourFilter, RouteFilter, RunOptions } from './namespace.js';
export type { Address, Family, Link, Neighbour, OperState, Route, RouteType, Scope } from './objects.js';
export type {
  AddressRequest,
  LinkAdd,
  LinkDelete,
  LinkGet,
  LinkSelector,
  LinkSet,
  NamespaceIdentity,
  NeighbourRequest,
  OpenNamespace,
  Outcome,
  Request,
  RouteRequest,
  Step,
  SysctlKey,
  SysctlReading,
  SysctlSetting,
  SysctlWrite,
  VethPeer,
} from './requests.js';
