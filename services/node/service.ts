import { join } from 'node:path';

import type { PeerPlan } from '@podwire/dataplane/bird/peers-file';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { OpenNodeAddresses } from '@podwire/dataplane/node-addresses';
import { ProbePods, setProbePodsAside } from '@podwire/dataplane/probes/probe-pods';
import { probeService } from '@podwire/dataplane/probes/probe-rpc';
import { PacketTracer } from '@podwire/dataplane/probes/packet-tracer';
import { ProgramNft } from '@podwire/dataplane/nft/nft-program';
import {
  prepareService,
  startService,
  type FurtherServiceParts,
  type RunningService,
  type ServiceDeps,
} from '@podwire/dataplane/service';
import type { RpcService } from '@podwire/shared/rpc/server';
import { LocalCalls } from '@podwire/plugin/clients/local-calls';
import { startPlugin } from '@podwire/plugin/service';
import type { NodeReport } from '@podwire/proto/podwire/ipam/v1/cluster';
import { Peer } from '@podwire/shared/rpc/client';
import { acquireExclusive } from '@podwire/shared/sockets/exclusive';
import { UNIX } from '@podwire/shared/sockets/listen';
import type { Clock } from '@podwire/shared/runtime/clock';
import { IdleCollection } from '@podwire/shared/runtime/idle-collection';
import type { RecentLines } from '@podwire/shared/runtime/recent-lines';
import { diagnosticsService } from '@podwire/shared/common-services/diagnostics-service';
import type { DirectoryLock } from '@podwire/shared/files/directory-lock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { readProcessRelease, type ProcessRelease } from '@podwire/shared/runtime/process-release';
import type { StopTelemetry } from '@podwire/shared/telemetry/telemetry';
import { ipamTls } from '@podwire/shared/tls/certificate-source';
import { ipamToken } from '@podwire/shared/tls/tls-settings';

import { inProcessDataplane } from './in-process-dataplane.js';
import type { AddressBook } from './addresses/address-book.js';
import { openAddressBook } from './addresses/open.js';
import { ClusterLink } from './cluster-link.js';
import { nodeFiles } from './diagnostics/node-files.js';
import { OperatorCalls, requestPlugin } from './operator-calls.js';
import { rehearse } from './rehearsal.js';
import { PREFIX, type NodeSettings } from './settings.js';

export const NODE_PROGRAM = 'podwire-node';

/** The settings of resources that two processes must not share. */
const EXCLUSIVE_SETTINGS =
  'PODWIRE_NODE_CNI_SOCKET, PODWIRE_NODE_LISTEN, PODWIRE_NODE_STATE_DIRECTORY and PODWIRE_NODE_RECORDS_DIRECTORY';

/** Dependencies of podwire-node on its process. */
export interface NodeDeps {
  readonly log: Logger;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** The current boot of the machine. */
  readonly boot: Boot;
  /** Fires when the process must end. */
  readonly stopped?: AbortSignal;
  /** The last lines of {@link log}. */
  readonly recentLines: RecentLines;
  /** The environment of the process. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** ID of this process, for the message to other processes that its locks exclude. */
  readonly pid: number;
  /**
   * Called once no other process of this program runs, as its port for metrics is free from then on. The returned function is
   * called before another process may take over. Default: no telemetry.
   */
  readonly startTelemetry?: () => Promise<StopTelemetry>;
}

/**
 * Starts podwire-node: the dataplane, then the server of the CNI commands. They stop in the opposite order. podwire-ipam need not
 * run yet.
 * @throws Failure as {@link prepareService}, {@link acquireExclusive}, {@link startService} and {@link startPlugin}
 */
export async function startNode(settings: NodeSettings, deps: NodeDeps): Promise<Running> {
  const peerPlan = await prepareService(settings);
  const lock = await acquireLocks(settings, deps);
  return startBefore(
    () => lock.release(),
    async () => {
      const stopTelemetry = await deps.startTelemetry?.();
      return startBefore(
        () => stopTelemetry?.(),
        () => startParts(settings, deps, peerPlan),
      );
    },
  );
}

/** Waits for the process before this one: records, journal and nftables may belong to another one that runs or starts. */
function acquireLocks(settings: NodeSettings, { log, clock, pid, stopped }: NodeDeps): Promise<DirectoryLock> {
  return acquireExclusive({
    program: NODE_PROGRAM,
    settings: EXCLUSIVE_SETTINGS,
    addresses: [UNIX + settings.cniSocket, ...settings.listen],
    directories: [
      {
        path: settings.stateDirectory,
        // Start anyway: pods must be deletable on a node whose disk is full or read-only.
        onUnlockable: (failure) =>
          log.warn(
            { err: failure },
            'the journal cannot be locked: another process that uses it would not be detected',
          ),
      },
      { path: settings.recordsDirectory },
    ],
    owner: String(pid),
    clock,
    signal: stopped,
    onWait: (message) => log.info(message),
  });
}

function startParts(settings: NodeSettings, deps: NodeDeps, peerPlan: PeerPlan | undefined): Promise<Running> {
  const { clock } = deps;
  const security = {
    tls: ipamTls(settings.ipamTls, deps),
    token: settings.ipamTls && ipamToken(PREFIX, settings, deps),
  };
  const connectIpam = (): Peer => new Peer('podwire-ipam', settings.ipamAddress, security);
  const ipam = connectIpam();
  const opened: { addresses?: AddressBook } = {};
  const openAddresses: OpenNodeAddresses = async (parts) =>
    (opened.addresses = await openAddressBook(settings, { ...deps, ipam }, parts));
  const stopAddresses = async (): Promise<void> => {
    const { addresses } = opened;
    delete opened.addresses;
    await addresses?.stop();
  };
  const close = async (): Promise<void> => {
    await stopAddresses();
    ipam.close();
  };
  const probes = createProbes(settings, deps);
  return startBefore(close, async () => {
    const rehearsed = rehearse(settings, deps);
    await probes.prepare();
    const release = await readProcessRelease();
    const calls = new OperatorCalls({ dataplane: settings.listen[0] ?? '', cniSocket: settings.cniSocket, clock });
    const diagnostics = createDiagnostics(settings, { ...deps, release, calls });
    const services: ServiceDeps['services'] = (parts) => [probes.service(parts), diagnostics(parts)];
    const service = await startService(settings, { ...deps, ipam, connectIpam, openAddresses, services }, peerPlan);
    const dataplane = inProcessDataplane(service, new LocalCalls(deps));
    return startBefore(
      // The inventory reads the kernel, which the dataplane closes.
      () => stopAddresses().then(() => service.stop()),
      async () => {
        const { addresses: nodeAddresses } = opened;
        if (!nodeAddresses) throw new Error('the dataplane must open the addresses');
        const activity = new IdleCollection(clock);
        const { tls } = security;
        const report = nodeReporter(service, release, () => tls?.certificates.endMs);
        const link = startClusterLink(settings, { ...deps, ipam, connectIpam, report, calls });
        // An ADD that came earlier would wait for both, with a caller.
        const prepared = () => within(PREPARATION_MS, Promise.all([rehearsed, nodeAddresses.listed]), clock);
        const pluginDeps = {
          ...{ ...deps, ipam, dataplane, nodeAddresses, activity, prepared },
          onFailedPod: (...failed: Parameters<typeof link.addFailed>) => link.addFailed(...failed),
        };
        const start = async (): Promise<Running> => {
          const plugin = await startPlugin(settings, pluginDeps);
          probes.start();
          return { stop: () => plugin.stop().finally(() => probes.close()) };
        };
        return startBefore(() => link.stop(), start);
      },
    );
  });
}

/** How long the CNI socket waits for what makes the first ADD fast, in milliseconds. */
const PREPARATION_MS = 500;

interface DiagnosticsDeps extends Pick<NodeDeps, 'recentLines' | 'env'> {
  readonly release: ProcessRelease;
  readonly calls: OperatorCalls;
}

const COMMANDS_TIMEOUT_MS = 5000;

function createDiagnostics(
  { recordsDirectory, stateDirectory }: NodeSettings,
  { release, recentLines: lines, env, calls }: DiagnosticsDeps,
): (parts: FurtherServiceParts) => RpcService {
  const nft = new ProgramNft();
  const ruleset = (): Promise<string> => nft.ruleset();
  const commands = (): Promise<string> => calls.get('/commands', COMMANDS_TIMEOUT_MS);
  return ({ status, streaming }) => {
    const files = () => nodeFiles({ recordsDirectory, stateDirectory, ruleset, status, commands });
    return diagnosticsService({ release, lines, env, files }, streaming);
  };
}

/** Time limit of an ADD or DEL of a probe pod. */
const PROBE_COMMAND_TIMEOUT_MS = 30_000;

interface Probes {
  readonly service: (parts: FurtherServiceParts) => RpcService;
  /** Before other parts start. */
  prepare(): Promise<void>;
  /** Removes what an earlier process left. */
  start(): void;
  close(): void;
}

function createProbes({ stateDirectory, cniSocket }: NodeSettings, { clock, random, log }: NodeDeps): Probes {
  const directory = join(stateDirectory, 'probes');
  const cni = (httpHeaders: Readonly<Record<string, string>>, body: string) => {
    const request = { path: '/cni', httpMethod: 'POST', httpHeaders: { ...httpHeaders }, body: Buffer.from(body) };
    return requestPlugin(cniSocket, request, PROBE_COMMAND_TIMEOUT_MS);
  };
  const pods = new ProbePods({ directory, cni, clock, random, log });
  const tracer = new PacketTracer(clock);
  const warn = (err: unknown): void => log.warn({ err }, 'tests of connectivity left objects that are not removed');
  return {
    service: ({ unary, records }) => probeService({ pods, tracer, records }, unary),
    // The disk may be full or read-only: pods start nevertheless.
    prepare: () => setProbePodsAside(directory).catch(warn),
    start: () => void Promise.all([pods.deleteLeftovers(), tracer.removeTable()]).catch(warn),
    close: () => pods.close(),
  };
}

/** @param certificateEndMs - when the certificate that the node shows expires; undefined: it shows none */
function nodeReporter(
  service: Pick<RunningService, 'status' | 'isServing'>,
  { release, startTime }: ProcessRelease,
  certificateEndMs: () => number | undefined,
): () => NodeReport {
  return () => {
    const endMs = certificateEndMs();
    const certificateEndTime = endMs === undefined ? undefined : new Date(endMs);
    // The time of the last reading would make each report a new one.
    const status = { ...service.status(), checkedAt: undefined };
    return { release, startTime, certificateEndTime, ready: service.isServing(), status };
  };
}

interface LinkDeps extends NodeDeps {
  readonly ipam: Peer;
  readonly connectIpam: () => Peer;
  readonly report: () => NodeReport;
  /** Closed at the end. */
  readonly calls: OperatorCalls;
}

function startClusterLink(
  { nodeName }: NodeSettings,
  { ipam, connectIpam: connect, report, calls, clock, random, log }: LinkDeps,
): Running & Pick<ClusterLink, 'addFailed'> {
  const execute: OperatorCalls['execute'] = (request, timeoutMs) => calls.execute(request, timeoutMs);
  const link = new ClusterLink({ nodeName, ipam, connect, report, execute, clock, random, log });
  link.start();
  return { stop: () => link.stop().then(() => calls.close()), addFailed: (...failed) => link.addFailed(...failed) };
}

/** Waits for work that never rejects, but no longer than a time in milliseconds. */
async function within(timeoutMs: number, work: Promise<unknown>, clock: Clock): Promise<void> {
  const done = new AbortController();
  await Promise.race([work.finally(() => done.abort()), clock.sleep(timeoutMs, done.signal)]);
}

/** Starts a part. `after` runs after its stop, or after its failed start. */
async function startBefore(after: () => void | Promise<void>, start: () => Promise<Running>): Promise<Running> {
  try {
    const part = await start();
    return { stop: () => part.stop().finally(after) };
  } catch (error) {
    await after();
    throw error;
  }
}
