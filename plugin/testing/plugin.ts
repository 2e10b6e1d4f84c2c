// The resident plugin with a fake podwire-ipam behind a real socket, and a fake dataplane, in a folder of its own.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import type { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { readSettings } from '@podwire/shared/settings/config-reader';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { expect, vi } from 'vitest';

import { ProviderHistory } from '../addresses/provider-history.js';
import type { Dataplane } from '../clients/clients.js';
import { LocalCalls } from '../clients/local-calls.js';
import type { Variables } from '../cni/environment.js';
import { ReadinessRecord } from '../commands/readiness-record.js';
import { composePlugin, type PluginParts } from '../service.js';
import type { Journal } from '../journal/journal.js';
import type { OnFailedPod } from '../observed-command.js';
import type { RecentCommands } from '../recent-commands.js';
import type { NetnsReader } from '../requests/netns.js';
import type { CniRequest } from '../requests/request.js';
import type { CniAnswer } from '../run.js';
import { PLUGIN_SETTINGS, type PluginSettings } from '../settings.js';
import { SpoolDirectory } from '../spool/spool-directory.js';
import type { Spool } from '../spool/spool.js';
import { MemoryJournalStore } from './journal-store.js';
import { FakeNodeAddresses } from './node-addresses.js';
import { FakeDataplane, FakeIpam, Script, serve } from './services.js';

export const BOOT_ID = '11111111-2222-4333-8444-555555555555';

/** Network namespaces by path; every other path is refused as the real reader refuses it. */
const NAMESPACES: Readonly<Record<string, bigint>> = {
  '/run/netns/pod': 4026532001n,
  '/run/netns/other': 4026532002n,
};

/** When the machine of these tests was booted. */
export const BOOTED_AT_MS = 1_700_000_000_000;

export const BOOT = { id: BOOT_ID, startedAtMs: BOOTED_AT_MS };

/** Path of the node's own network namespace. */
export const OWN_NETNS = '/proc/1/ns/net';

const namespaces: NetnsReader = {
  identify(path, options) {
    const inode = path === OWN_NETNS && options?.allowsOwn ? 4026531840n : NAMESPACES[path];
    if (inode === undefined) throw new Failure('INVALID_NETNS', `CNI_NETNS ${path} does not exist`);
    return { bootId: BOOT_ID, inode };
  },
};

/** A logger, and the lines that it wrote. */
export function recordingLog(): { readonly log: Logger; readonly lines: () => Record<string, unknown>[] } {
  const destination = new PassThrough();
  let text = '';
  destination.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
  const log = createLogger({ service: 'podwire-node', level: 'info', destination });
  const lines = () =>
    text
      .trim()
      .split('\n')
      .filter((line) => line !== '')
      .map((line): Record<string, unknown> => JSON.parse(line));
  return { log, lines };
}

export interface Command {
  readonly variables?: Variables;
  /** Keys of the configuration that replace or extend the usual ones; undefined removes one. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** The configuration's text instead. */
  readonly text?: string;
  readonly rest?: Partial<CniRequest>;
}

export const ENVIRONMENT = {
  CNI_CONTAINERID: 'c0ffee',
  CNI_NETNS: '/run/netns/pod',
  CNI_IFNAME: 'eth0',
  CNI_ARGS: 'IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=u-1',
  CNI_PATH: '/opt/cni/bin',
} as const;

/** The settings of a plugin in a folder of its own. */
export function settingsIn(folder: string, changes: Partial<PluginSettings> = {}): PluginSettings {
  return {
    ...readSettings({ settings: PLUGIN_SETTINGS, prefix: 'PODWIRE_NODE_', env: {} }),
    cniSocket: join(folder, 'run', 'cni.sock'),
    stateDirectory: join(folder, 'journal'),
    nodeName: 'node-1',
    drainTimeoutMs: 1500,
    ...changes,
  };
}

export const CONFIG = { cniVersion: '1.0.0', name: 'net', type: 'podwire', ipam: { type: 'podwire-ipam' } } as const;

/** The plugin as it runs in the resident process, without its socket. */
export class Plugin {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-node-'));
  readonly script = new Script();
  readonly ipam: FakeIpam;
  readonly dataplane: FakeDataplane;
  readonly nodeAddresses = new FakeNodeAddresses();
  readonly record = recordingLog();
  /** ADDs of pods that failed. */
  readonly failedPods: { readonly pod: object; readonly code: string; readonly message: string }[] = [];
  /** State that outlives the process of the plugin. */
  readonly store: MemoryJournalStore;
  readonly history: ProviderHistory;
  /** Signals that the process stops. */
  readonly stopping = new AbortController();
  /** Cuts off work that continues without a caller, as the end of the process does. */
  readonly ending = new AbortController();
  readonly spoolPath = join(this.folder, 'spool');
  /** The dataplane as the commands call it. */
  readonly client: Dataplane;
  /** The spool is not started. */
  readonly parts: PluginParts;
  readonly #peer: Peer;
  /** Release of podwire-ipam from its next start on; this one's when undefined. */
  release: number | undefined;
  #server: RpcServer | undefined;

  /** Time limits are longer than a busy machine takes, as the journal completes work that exceeds them. */
  constructor({
    timeoutMs = 20_000,
    cleanUpTimeoutMs = 20_000,
    delServiceTimeoutMs = 20_000,
    netns = namespaces,
    store = new MemoryJournalStore(),
    providerHistoryPath = '',
    isStrict = false,
    /** Whether the node records its pods; otherwise it is as one whose records are lost. */
    recorded = false,
    ipam: fakeIpam = new FakeIpam(),
    dataplane: fakeDataplane = new FakeDataplane(),
    /** Wraps the dataplane that the commands call. */
    wrap = (dataplane: Dataplane): Dataplane => dataplane,
  } = {}) {
    this.ipam = fakeIpam;
    this.dataplane = fakeDataplane;
    this.#peer = new Peer('podwire-ipam', this.address());
    const { log } = this.record;
    this.store = store;
    const path = providerHistoryPath === '' ? join(this.folder, 'address-providers') : providerHistoryPath;
    this.history = new ProviderHistory({ path, bootId: BOOT_ID, log });
    const client = this.dataplane.client(new LocalCalls({ log, clock: systemClock }), this.script);
    this.client = wrap(recorded ? this.nodeAddresses.recording(client) : client);
    const settings = settingsIn(this.folder, {
      addTimeoutMs: timeoutMs,
      delTimeoutMs: timeoutMs,
      cleanUpTimeoutMs,
      delServiceTimeoutMs,
      journalMaxEntriesCount: 100,
      strictStatus: isStrict,
    });
    const onFailedPod: OnFailedPod = (pod, failure) => this.failedPods.push({ pod, ...failure });
    const deps = {
      ipam: this.#peer,
      dataplane: this.client,
      nodeAddresses: this.nodeAddresses,
      boot: BOOT,
      onFailedPod,
    };
    this.parts = composePlugin(
      settings,
      { clock: systemClock, random: () => 0.5, log, ...deps },
      {
        journalStore: store,
        history: this.history,
        readinessRecord: new ReadinessRecord({ path: join(this.folder, 'node-ready'), bootId: BOOT_ID, log }),
        spoolDirectory: new SpoolDirectory(this.spoolPath, systemClock),
        netns,
        stopping: this.stopping.signal,
        ending: this.ending.signal,
      },
    );
  }

  get spool(): Spool {
    return this.parts.spool;
  }

  get recent(): RecentCommands {
    return this.parts.recent;
  }

  get journal(): Journal {
    return this.parts.journal;
  }

  /** Replays the journal, as the resident does while it runs. */
  async replayed(): Promise<void> {
    void this.parts.replay.runNow();
    await vi.waitFor(() => expect(this.journal.isIdle).toBe(true), { interval: 5, timeout: 20_000 });
  }

  /** Address of podwire-ipam. */
  address(): string {
    return `unix:${join(this.folder, 'ipam.sock')}`;
  }

  /** @param services - podwire-ipam to start, the dataplane to answer; both when there is none */
  async start(...services: readonly ('ipam' | 'dataplane')[]): Promise<this> {
    const { script, release, ipam: fake } = this;
    await this.journal.load();
    await this.history.load();
    const wanted = services.length > 0 ? services : ['ipam', 'dataplane'];
    if (wanted.includes('dataplane')) this.dataplane.serve();
    if (wanted.includes('ipam'))
      this.#server = await serve(this.address(), { fake, script, log: recordingLog().log, release });
    return this;
  }

  /** Ends podwire-ipam at once, and makes the dataplane hang. */
  async stopServices(): Promise<void> {
    this.dataplane.hang();
    await this.#server?.stop();
    this.#server = undefined;
  }

  async end(): Promise<void> {
    await this.parts.spool.stop();
    await this.parts.readiness.stop();
    await this.parts.replay.stop();
    this.#peer.close();
    await this.stopServices();
    rmSync(this.folder, { recursive: true });
  }

  run(
    command: string,
    { variables, config, text, rest }: Command = {},
    send?: (answer: CniAnswer) => void,
  ): Promise<CniAnswer> {
    const request: CniRequest = {
      plugin: 'podwire',
      variables: { ...ENVIRONMENT, CNI_COMMAND: command, ...variables },
      configuration: text ?? JSON.stringify({ ...CONFIG, ...config }),
      traceContext: {},
      startedNs: undefined,
      arrivedNs: BigInt(systemClock.nowMs()) * 1_000_000n,
      cancel: new AbortController(),
      ...rest,
    };
    return this.parts.run(request, send);
  }

  /** The allocations and the attachments. */
  state(): string {
    return `${this.ipam.toString()}\n--\n${this.dataplane.toString()}`;
  }
}

export const NOTHING = '\n--\n';
