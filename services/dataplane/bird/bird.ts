import { Failure } from '@podwire/shared/failure/failure';
import { WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterNode, ClusterView, Follower } from '../cluster/cluster.js';
import { formatList, type Condition } from '../conditions/conditions.js';
import { AdvertisedBlocks, ConfigFile, renderBird } from './bird-config.js';
import type { BirdEvents } from './bird-events.js';
import { checkOffline, startBird, type BirdFiles, type BirdProcess } from './bird-process.js';
import { isRefusal, openControl, outcomeOf, type BirdControl } from './control-socket.js';
import {
  isReflector,
  readSessions,
  sessionsOf,
  SHOW_SESSIONS,
  type BirdStatus,
  type SessionStatus,
  type Session,
  type SessionSettings,
  type SessionState,
} from './sessions.js';

export interface BirdSettings extends SessionSettings {
  readonly files: BirdFiles;
  /** `external`: the operator runs BIRD; `child`: this service does, unless one answers already. */
  readonly run: 'external' | 'child';
  /** Interval for polling BIRD's sessions, and for reconnecting. */
  readonly pollMs: number;
}

export interface BirdOptions {
  readonly settings: BirdSettings;
  readonly clock: Clock;
  readonly events: BirdEvents;
}

/** Timeout for BIRD's answer, and for its start. */
const REPLY_TIMEOUT_MS = 10_000;

/** Interval of connection attempts to a BIRD that was just started. */
const START_POLL_MS = 50;

/** The last view with this node's registration. */
interface Source {
  readonly self: ClusterNode;
  readonly view: ClusterView;
}

interface WantedConfig extends Source {
  readonly phase: 'rendered';
  readonly text: string;
  readonly sessions: readonly Session[];
}

/** `stale`: has to be rendered; `sessions` are the earlier ones. */
type Plan = WantedConfig | (Source & { readonly phase: 'stale'; readonly sessions: readonly Session[] });

type Connection =
  /** No attempt has ended. */
  | { readonly phase: 'unknown' }
  | { readonly phase: 'unreachable' }
  /** The connection is lost; the next round opens another at once. */
  | { readonly phase: 'interrupted'; readonly states: SessionStates }
  | { readonly phase: 'open'; readonly control: BirdControl; readonly states: SessionStates };

/** States by session name. */
type SessionStates = ReadonlyMap<string, SessionState>;

/** The outcome of the last configuration. */
type Loaded =
  /** The BIRD of a new connection may be another one. */
  | { readonly phase: 'unknown' }
  | { readonly phase: 'applied'; readonly text: string }
  | { readonly phase: 'refused'; readonly text: string; readonly reason: string };

/** The BIRD process of this service. */
type Child =
  | { readonly phase: 'none'; readonly startedAtMs: number }
  /** It has not accepted a connection. */
  | { readonly phase: 'starting' | 'running'; readonly startedAtMs: number; readonly process: BirdProcess };

/**
 * Reconciles BIRD with the cluster's state: configures it on disk and in the daemon, and polls its sessions.
 *
 * A round connects if necessary, lets BIRD check and load a changed configuration, and polls the sessions. It starts on a
 * relevant view, on a lost connection, or at the polling interval. The next round retries any failure; BIRD and its routes in
 * the kernel stay as they are meanwhile.
 */
export class Bird implements Follower {
  readonly #settings: BirdSettings;
  readonly #clock: Clock;
  readonly #events: BirdEvents;
  readonly #file: ConfigFile;
  readonly #advertised = new AdvertisedBlocks();
  readonly #rounds: WorkQueue<'round'>;
  #plan: Plan | undefined;
  #connection: Connection = { phase: 'unknown' };
  #loaded: Loaded = { phase: 'unknown' };
  #child: Child = { phase: 'none', startedAtMs: Number.NEGATIVE_INFINITY };
  /** Last reported state of each session. */
  #reportedStates = new Map<string, string>();

  constructor({ settings, clock, events }: BirdOptions) {
    this.#settings = settings;
    this.#clock = clock;
    this.#events = events;
    this.#file = new ConfigFile(settings.files.configPath);
    this.#rounds = new WorkQueue({
      reconcile: () => this.#round(),
      retryInMs: () => settings.pollMs,
      onFailure: (defect) => {
        throw defect;
      },
      clock,
    });
    this.#rounds.request('round');
  }

  follow(view: ClusterView, change: ClusterChange): void {
    const hasChanged = this.#advertised.update(view, change) || change.hasOtherChanges;
    const self = view.cluster.nodes.get(view.self);
    const before = this.#plan;
    // Sessions need this node's registration: BIRD keeps the last registration's.
    const source = self ? { self, view } : before;
    if (!source) return;
    if (before?.phase === 'rendered' && !hasChanged) this.#plan = { ...before, ...source };
    else this.#plan = { ...source, phase: 'stale', sessions: before?.sessions ?? [] };
    if (self && this.#plan.phase === 'stale') this.#rounds.request('round');
  }

  status(): BirdStatus {
    const { phase } = this.#connection;
    return {
      isReachable: phase === 'unknown' ? undefined : phase !== 'unreachable',
      refusal: this.#loaded.phase === 'refused' ? this.#loaded.reason : undefined,
      sessions: (this.#plan?.sessions ?? []).map((session) => this.#statusOf(session)),
    };
  }

  /** Conditions of BIRD. */
  conditions(): readonly Condition[] {
    const { isReachable, refusal, sessions } = this.status();
    const { socketPath, configPath } = this.#settings.files;
    const down = sessions.filter(({ state }) => isReachable === true && state?.isEstablished !== true);
    const describe = ({ session, state }: SessionStatus) =>
      `${session.about} at ${session.neighbour} (${reasonOf(state)})`;
    return [
      ...(isReachable === false
        ? [{ reason: 'BirdUnreachable', message: `BIRD does not answer at ${socketPath}; check that it runs` }]
        : []),
      ...(refusal === undefined
        ? []
        : [
            {
              reason: 'BirdRefused',
              message: `BIRD refused ${configPath} and keeps the previous configuration: ${refusal}`,
            },
          ]),
      ...(down.length === 0
        ? []
        : [{ reason: 'BgpSessionDown', message: `BGP is not established with ${formatList(down.map(describe))}` }]),
    ];
  }

  async stop(): Promise<void> {
    await this.#rounds.stop();
    const control = this.#connection.phase === 'open' ? this.#connection.control : undefined;
    const child = this.#child;
    this.#child = { phase: 'none', startedAtMs: child.startedAtMs };
    if (child.phase !== 'none') await this.#stopProcess(child.process, control);
    control?.close();
  }

  async #round(): Promise<NextRun> {
    try {
      const wanted = this.#render();
      if (wanted) {
        const control = this.#connection.phase === 'open' ? this.#connection.control : await this.#connect(wanted);
        if (this.#loaded.phase !== 'applied' || this.#loaded.text !== wanted.text)
          await this.#configure(control, wanted);
        await this.#pollSessions(control, wanted);
      }
    } catch (error) {
      if (!(error instanceof Failure) || error.code !== 'BIRD_UNREACHABLE') this.#events.failed(error);
      else if (this.#isStarting()) return { inMs: START_POLL_MS };
      else this.#disconnected(error.message);
    }
    return { inMs: this.#settings.pollMs };
  }

  #render(): WantedConfig | undefined {
    const before = this.#plan;
    if (before?.phase !== 'stale') return before;
    const { self, view } = before;
    const { plan, run } = this.#settings;
    const sessions = sessionsOf(self, view.cluster, this.#settings);
    const text = renderBird({
      self,
      pools: [...view.cluster.pools.values()],
      sessions,
      own: this.#advertised.own(),
      orphans: this.#advertised.orphans(),
      isReflector: isReflector(self, plan),
      log: run === 'child' ? 'stderr' : 'syslog',
    });
    this.#plan = { phase: 'rendered', self, view, text, sessions };
    return this.#plan;
  }

  /** @throws Failure BIRD_UNREACHABLE, also when it has started BIRD */
  async #connect(wanted: WantedConfig): Promise<BirdControl> {
    const control = await this.#open().catch(async (error: unknown) => {
      if (!this.#isStarting()) {
        // The configuration must exist before BIRD starts.
        await this.#prepare(wanted);
        if (this.#settings.run === 'child') await this.#start();
      }
      throw error;
    });
    const before = this.#connection;
    if (before.phase !== 'interrupted') this.#events.reached();
    const states = before.phase === 'interrupted' ? before.states : new Map<string, SessionState>();
    this.#connection = { phase: 'open', control, states };
    if (this.#loaded.phase === 'applied') this.#loaded = { phase: 'unknown' };
    if (this.#child.phase === 'starting') this.#child = { ...this.#child, phase: 'running' };
    return control;
  }

  #open(): Promise<BirdControl> {
    const { socketPath } = this.#settings.files;
    const onLost = (): void => {
      // A failed attempt is retried at the polling interval, a lost connection at once.
      if (this.#connection.phase !== 'open') return;
      this.#connection = { phase: 'interrupted', states: this.#connection.states };
      this.#rounds.request('round');
    };
    return openControl({ path: socketPath, clock: this.#clock, replyTimeoutMs: REPLY_TIMEOUT_MS, onLost });
  }

  /** Whether to wait for a BIRD that was just started: the next round tries again soon. */
  #isStarting(): boolean {
    const { phase, startedAtMs } = this.#child;
    return phase === 'starting' && this.#clock.monotonicMs() - startedAtMs < REPLY_TIMEOUT_MS;
  }

  /** Writes the configuration to disk while no BIRD runs; checks it with the program, if installed. */
  async #prepare({ text }: WantedConfig): Promise<void> {
    if ((await this.#file.read()) === text) return;
    await this.#file.propose(text);
    const check = await checkOffline(this.#settings.files.program, this.#file.candidatePath);
    if (check.kind === 'refused') await this.#refuse(text, check.reason);
    else await this.#file.accept();
  }

  /** Starts BIRD if it does not run; restarts it after a delay. */
  async #start(): Promise<void> {
    const startedAtMs = this.#clock.monotonicMs();
    if (this.#child.phase !== 'none' || startedAtMs - this.#child.startedAtMs < this.#settings.pollMs) return;
    if ((await this.#file.read()) === undefined) return;
    const process = startBird(this.#settings.files, (line) => this.#events.processLogged(line));
    this.#child = { phase: 'starting', startedAtMs, process };
    this.#events.processStarted();
    void process.ended.then((how) => {
      if (this.#child.phase === 'none') return;
      this.#child = { phase: 'none', startedAtMs };
      this.#events.processEnded(how);
    });
  }

  /** Lets BIRD check the configuration, then load it. @throws Failure BIRD_UNREACHABLE */
  async #configure(control: BirdControl, { text, sessions }: WantedConfig): Promise<void> {
    await this.#file.propose(text);
    const check = await control.run(`configure check "${this.#file.candidatePath}"`);
    if (isRefusal(check)) return this.#refuse(text, outcomeOf(check));
    const before = await this.#file.read();
    await this.#file.accept();
    const reply = await control.run(`configure "${this.#file.path}"`);
    if (isRefusal(reply)) {
      await this.#file.propose(before ?? text);
      if (before !== undefined) await this.#file.accept();
      return this.#refuse(text, outcomeOf(reply));
    }
    this.#loaded = { phase: 'applied', text };
    this.#events.configured(sessions.length);
  }

  async #refuse(text: string, reason: string): Promise<void> {
    await this.#file.reject();
    // Retried in each round, as BIRD may have failed to read the file; reported once.
    const before = this.#loaded;
    if (before.phase !== 'refused' || before.text !== text || before.reason !== reason) this.#events.refused(reason);
    this.#loaded = { phase: 'refused', text, reason };
  }

  async #pollSessions(control: BirdControl, { sessions }: WantedConfig): Promise<void> {
    const states = readSessions(await control.run(SHOW_SESSIONS));
    if ('states' in this.#connection)
      this.#connection = { ...this.#connection, states: new Map(states.map((state) => [state.name, state])) };
    const reported = new Map<string, string>();
    for (const session of sessions) {
      const status = this.#statusOf(session);
      const summary = summaryOf(status.state);
      const before = this.#reportedStates.get(session.name) ?? summaryOf(undefined);
      reported.set(session.name, summary);
      if (summary === before) continue;
      if (status.state?.isEstablished === true) this.#events.established(status);
      else this.#events.down(status);
    }
    this.#reportedStates = reported;
    this.#events.polled(this.status());
  }

  #statusOf(session: Session): SessionStatus {
    const connection = this.#connection;
    return { session, state: 'states' in connection ? connection.states.get(session.name) : undefined };
  }

  #disconnected(reason: string): void {
    if (this.#connection.phase !== 'unreachable') this.#events.lost(reason);
    this.#connection = { phase: 'unreachable' };
  }

  /** Kills this service's BIRD so that neighbours and kernel keep its routes until it is back (RFC 4724). */
  async #stopProcess(process: BirdProcess, control: BirdControl | undefined): Promise<void> {
    const ended = new AbortController();
    const over = process.ended.then(() => ended.abort());
    await control?.run('graceful restart').catch(() => undefined);
    await this.#clock.sleep(control ? REPLY_TIMEOUT_MS : 0, ended.signal);
    process.kill();
    await over;
  }
}

function reasonOf(state: SessionState | undefined): string {
  return state?.reason ?? state?.state ?? 'unknown to BIRD';
}

/** Suppresses repeated reports of the same state. */
function summaryOf(state: SessionState | undefined): string {
  return state?.isEstablished === true ? 'established' : `down ${state?.reason ?? ''}`;
}
