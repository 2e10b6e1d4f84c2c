/**
 * The exact interface of the compiled addon (src/binding). Internal to lib/.
 *
 * Every property is always present. Absent is `null`; `undefined` causes a TypeError that names the path. Promises reject with a
 * {@link NativeError}.
 */
import type { Address, FdbEntry, Link, Neighbour, ObjectChange, Overrun, Qdisc, Route, Rule } from './objects.js';

/** A failure: a positive errno value and the kernel's extended-ack text, or the addon's own. */
export interface NativeError {
  readonly errno: number;
  readonly text: string | null;
}

export interface NativeSelector {
  /** 0 when `name` is given. */
  readonly index: number;
  readonly name: string | null;
}

export interface NativeStepBase {
  readonly optional: boolean;
  /** Null: the namespace of the call. */
  readonly within: NativeNamespace | null;
}

/**
 * A step as lib/steps.ts makes it of a request, with `op` and all fields of it. src/binding/steps.cc refuses a step with a field that
 * is missing or of another type.
 */
export interface NativeStep extends NativeStepBase {
  readonly op: string;
  readonly [field: string]: unknown;
}

export interface NativeOutcome {
  readonly error: NativeError | null;
  readonly link: Link | null;
  readonly previous: string | null;
  /** With the major number alone as `handle`. */
  readonly qdisc: Qdisc | null;
}

export interface NativeReading {
  readonly error: NativeError | null;
  readonly value: string | null;
}

/** Filters of a dump; 0 and null match any. */
export interface NativeDumpFilter {
  readonly family: 0 | 4 | 6;
  readonly index: number;
  readonly table: number;
  readonly protocol: number;
  /** Neighbours only: the proxy entries instead. */
  readonly proxy: boolean;
  /** Routes only. */
  readonly destination: string | null;
  readonly prefixLengthBits: number;
  readonly maxCount: number;
  readonly timeoutMs: number;
}

/** An address of a link to announce to its neighbours. */
export interface NativeAnnouncement {
  readonly index: number;
  readonly address: string;
  readonly router: boolean;
}

export interface NativeRunOptions {
  /** True: sequential, stopping at the first failure. False: all in one send. */
  readonly sequential: boolean;
  readonly timeoutMs: number;
}

/** A set or map. `family` is an NFPROTO_* number; `key` and `data` name types of fields, `data` is empty without values. */
export interface NativeSet {
  readonly family: number;
  readonly table: string;
  readonly name: string;
  readonly key: readonly string[];
  readonly data: readonly string[];
  readonly intervals: boolean;
}

export interface NativeElementChange {
  readonly set: NativeSet;
  readonly deletes: boolean;
  /**
   * One text for all elements: the fields of the key and of the data of each, its verdict (`accept`, `goto` and so on) and the
   * verdict's chain. Every part ends with a zero byte; a part that the element lacks is empty.
   */
  readonly elements: string;
}

export interface NativeChangeResult {
  /** `element`: the position of the refused one, where the kernel says it. */
  readonly outcomes: readonly { readonly error: NativeError | null; readonly element: number | null }[];
  /** Null when nothing was changed. */
  readonly generation: number | null;
}

/** Null and an empty list match any. */
export interface NativeConntrackFilter {
  readonly family: 4 | 6;
  readonly address: string | null;
  readonly protocol: number | null;
  /** With a protocol. */
  readonly destinationPorts: readonly number[];
}

/** The subscription failed, and ends. */
export interface NativeFailure {
  readonly object: 'failure';
  readonly error: NativeError;
}

/** One notification; `overrun` says that the kernel dropped some. */
export type NativeEvent = ObjectChange | Overrun | NativeFailure;

export interface NativeTransaction {
  readonly object: 'transaction';
  readonly generation: number;
  readonly threadId: number | null;
  readonly processName: string | null;
  /** Kinds of changes of each table, in the order of the call. */
  readonly changes: readonly (readonly string[])[];
}

/** A packet that a rule of nf_tables has logged. */
export interface NativePacket {
  readonly object: 'packet';
  readonly prefix: string;
  readonly inputIndex: number | null;
  readonly outputIndex: number | null;
  readonly payload: Buffer;
}

export interface NativeMonitor {
  /** No event follows. Idempotent. */
  close(): void;
}

export interface NativeProbe {
  readonly address: string;
  /** 0: an echo request. */
  readonly port: number;
  readonly udp: boolean;
  readonly payloadBytes: number;
}

export interface NativeProbeAnswer {
  /** 0: answered. */
  readonly errno: number;
  readonly milliseconds: number;
  readonly reporter: string | null;
  /** 0: unknown. */
  readonly mtuBytes: number;
}

export interface NativeNamespace {
  readonly device: bigint;
  readonly inode: bigint;
  readonly cookie: bigint | null;
  run(steps: readonly NativeStep[], options: NativeRunOptions): Promise<NativeOutcome[]>;
  dumpLinks(filter: NativeDumpFilter): Promise<Link[]>;
  dumpAddresses(filter: NativeDumpFilter): Promise<Address[]>;
  dumpRoutes(filter: NativeDumpFilter): Promise<Route[]>;
  dumpRules(filter: NativeDumpFilter): Promise<Rule[]>;
  dumpNeighbours(filter: NativeDumpFilter): Promise<Neighbour[]>;
  dumpFdb(filter: NativeDumpFilter): Promise<FdbEntry[]>;
  readSysctls(paths: readonly string[]): Promise<NativeReading[]>;
  deleteLink(link: NativeSelector): Promise<void>;
  deleteConntrack(filter: NativeConntrackFilter): Promise<number>;
  /** Entries in the form that src/netfilter/conntrack.h describes. */
  listConnections(addresses: readonly string[]): Promise<Buffer>;
  deleteConnections(connections: Buffer): Promise<number>;
  /** Rejects with EINVAL and `PATH: PROBLEM` for a field that is not of its type. */
  changeElements(changes: readonly NativeElementChange[]): Promise<NativeChangeResult>;
  readGeneration(): Promise<number>;
  announceAddress(announcement: NativeAnnouncement): Promise<void>;
  probe(probes: readonly NativeProbe[], options: { readonly timeoutMs: number }): Promise<NativeProbeAnswer[]>;
  /** A descriptor. */
  listenTcp(options: { readonly port: number }): Promise<number>;
  /** `groups` are RTNLGRP_* numbers; `onEvents` is called on the thread of the environment. */
  monitor(
    groups: readonly number[],
    gatherMs: number,
    onEvents: (events: NativeEvent[]) => void,
  ): Promise<NativeMonitor>;
  /** `family` is an NFPROTO_* number. */
  monitorTables(
    tables: readonly { readonly family: number; readonly table: string }[],
    gatherMs: number,
    onEvents: (events: (NativeTransaction | Overrun | NativeFailure)[]) => void,
  ): Promise<NativeMonitor>;
  monitorPackets(
    log: { readonly group: number; readonly copyBytes: number },
    gatherMs: number,
    onEvents: (events: (NativePacket | Overrun | NativeFailure)[]) => void,
  ): Promise<NativeMonitor>;
  /** Waits for calls in flight. Idempotent. */
  close(): Promise<void>;
}

export interface NativePeer {
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

export interface NativeBinding {
  /** Opens a namespace by path, or the calling process's own. */
  openNamespace(path: string | null): Promise<NativeNamespace>;
  /** Null: it cannot be opened, or not without waiting for the file system or another thread. */
  openNamespaceAtOnce(path: string): NativeNamespace | null;
  /** Whether the lock of an open file was free, and is held by this descriptor now. */
  lockFile(descriptor: number): boolean | NativeError;
  /** Whether the system's clock follows another clock. */
  clockSynchronized(): boolean | NativeError;
  /** A descriptor of a new network namespace. */
  makeNamespace(): Promise<number>;
  peerCredentials(descriptor: number): NativePeer | NativeError;
  /** For all threads of the process. */
  setProcDirectory(directory: string): void;
}
