/**
 * Raw rtnetlink for Node.js: links, addresses, routes, rules, neighbours, forwarding entries and sysctls of any network
 * namespace.
 *
 * No call waits for the kernel on the event loop; every method that touches the kernel returns a promise. This package has no
 * notion of pods.
 */
export { ArgumentError, NamespaceClosedError, NetlinkError, NotANetworkNamespaceError } from './errors.js';
export type { ConntrackFilter, TrackedConnection } from './conntrack.js';
export type { Monitor, MonitorEvent, MonitorGroup, MonitorOptions } from './monitor.js';
export type { NftChangeKind, NftTransaction, TableMonitorOptions } from './nft-monitor.js';
export type { LoggedPacket, PacketLogOptions } from './packet-log.js';
export type { Probe, ProbeAnswer } from './probe.js';
export { makeNamespace, openNamespace, setProcDirectory } from './namespace.js';
export type {
  AddressFilter,
  Announcement,
  FdbFilter,
  ListBounds,
  Namespace,
  NeighbourFilter,
  RouteFilter,
  RuleFilter,
  RunOptions,
} from './namespace.js';
export type {
  NftChangeOutcome,
  NftChangeResult,
  NftElement,
  NftElementChange,
  NftFamily,
  NftField,
  NftFieldType,
  NftSet,
  NftTableName,
  NftVerdict,
} from './nft-elements.js';
export type {
  Address,
  AddressGeneration,
  Family,
  FdbEntry,
  IpipSettings,
  Link,
  Neighbour,
  Qdisc,
  Route,
  RouteType,
  Rule,
  RuleAction,
  Scope,
  TokenBucketState,
  VxlanSettings,
} from './objects.js';
export type {
  AddressRequest,
  FdbRequest,
  IpipAdd,
  LinkAdd,
  LinkDelete,
  LinkGet,
  LinkSelector,
  LinkSet,
  NamespaceIdentity,
  NeighbourRequest,
  NewLink,
  OpenNamespace,
  Outcome,
  QdiscDeleteOrGet,
  QdiscReplace,
  Request,
  RouteRequest,
  RuleRequest,
  Step,
  SysctlKey,
  SysctlReading,
  SysctlSetting,
  SysctlWrite,
  TokenBucket,
  VethAdd,
  VethPeer,
  VxlanAdd,
} from './requests.js';
