import { Failure } from '@podwire/shared/failure/failure';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
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

interface WantedConfig {
  readonly text: string;
  readonly sessions: readonly Session[];
}

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
  readonly #stopping = new AbortController();
  readonly #rounds: WorkQueue<'round'>;
  #view: ClusterView | undefined;
  #isStale = true;
  #wanted: WantedConfig | undefined;
  #control: BirdControl | undefined;
  /** The configuration that BIRD has loaded; undefined after each new connection, as it may be another BIRD. */
  #applied: string | undefined;
  #refusal: { readonly text: string; readonly reason: string } | undefined;
  #isReachable: boolean | undefined;
  #states: ReadonlyMap<string, SessionState> = new Map();
  /** By session: the last reported state. */
  #reportedStates = new Map<string, string>();
  #process: BirdProcess | undefined;
  #startedAtMs = Number.NEGATIVE_INFINITY;

  constructor({ settings, clock, events }: BirdOptions) {
    this.#settings = settings;
    this.#clock = clock;
    this.#events = events;
    this.#file = new ConfigFile(settings.files.configPath);
    this.#rounds = new WorkQueue({
      reconcile: async () => {
        await this.#attempt();
        return { inMs: settings.pollMs };
      },
      retryInMs: () => settings.pollMs,
      onFailure: (defect) => {
        throw defect;
      },
      clock,
    });
    this.#rounds.request('round');
  }

  follow(view: ClusterView, change: ClusterChange): void {
    const hasChanged = this.#advertised.update(view, change);
    this.#isStale ||= hasChanged || change.hasOtherChanges;
    // Without this node's registration there are no sessions: BIRD keeps those of the last one.
    if (!view.cluster.nodes.has(view.self)) return;
    this.#view = view;
    if (this.#isStale) this.#rounds.request('round');
  }

  status(): BirdStatus {
    return {
      isReachable: this.#isReachable,
      refusal: this.#refusal?.reason,
      sessions: (this.#wanted?.sessions ?? []).map((session) => this.#statusOf(session)),
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
    this.#stopping.abort();
    await this.#rounds.stop();
    if (this.#process) await this.#stopProcess(this.#process);
    this.#control?.close();
  }

  async #attempt(): Promise<void> {
    try {
      const wanted = this.#render();
      if (!wanted) return;
      const control = this.#control ?? (await this.#connect(wanted));
      if (wanted.text !== this.#applied) await this.#configure(control, wanted);
      await this.#pollSessions(control, wanted);
    } catch (error) {
      if (error instanceof Failure && error.code === 'BIRD_UNREACHABLE') this.#disconnected(error.message);
      else this.#events.failed(error);
    }
  }

  #render(): WantedConfig | undefined {
    const view = this.#view;
    const self = view?.cluster.nodes.get(view.self);
    if (!view || !self || !this.#isStale) return this.#wanted;
    const { cluster } = view;
    const { plan, run } = this.#settings;
    const sessions = sessionsOf(self, cluster, this.#settings);
    const text = renderBird({
      self,
      pools: [...cluster.pools.values()],
      sessions,
      own: this.#advertised.own(),
      orphans: this.#advertised.orphans(),
      isReflector: isReflector(self, plan),
      log: run === 'child' ? 'stderr' : 'syslog',
    });
    this.#wanted = { text, sessions };
    // A failed rendering must be repeated.
    this.#isStale = false;
    return this.#wanted;
  }

  /** @throws Failure BIRD_UNREACHABLE */
  async #connect(wanted: WantedConfig): Promise<BirdControl> {
    this.#applied = undefined;
    const control = await this.#open().catch(async (error: unknown) => {
      // The configuration must exist before BIRD starts.
      await this.#prepare(wanted);
      if (this.#settings.run === 'external' || !(await this.#start())) throw error;
      return this.#openSoon();
    });
    this.#control = control;
    if (this.#isReachable !== true) this.#events.reached();
    this.#isReachable = true;
    return control;
  }

  #open(): Promise<BirdControl> {
    const { socketPath } = this.#settings.files;
    const onLost = (): void => {
      // A failed attempt is retried at the polling interval, a lost connection at once.
      if (!this.#control) return;
      this.#control = undefined;
      this.#rounds.request('round');
    };
    return openControl({ path: socketPath, clock: this.#clock, replyTimeoutMs: REPLY_TIMEOUT_MS, onLost });
  }

  /** Connects to a BIRD that was just started, as soon as it accepts connections. */
  async #openSoon(): Promise<BirdControl> {
    const endMs = this.#clock.monotonicMs() + REPLY_TIMEOUT_MS;
    for (;;) {
      try {
        return await this.#open();
      } catch (error) {
        if (!this.#process || this.#stopping.signal.aborted || this.#clock.monotonicMs() > endMs) throw error;
      }
      await this.#clock.sleep(START_POLL_MS, this.#stopping.signal);
    }
  }

  /** Writes the configuration to disk while no BIRD runs; checks it with the program, if installed. */
  async #prepare({ text }: WantedConfig): Promise<void> {
    if ((await this.#file.read()) === text) return;
    await this.#file.propose(text);
    const check = await checkOffline(this.#settings.files.program, this.#file.candidatePath);
    if (check.kind === 'refused') await this.#refuse(text, check.reason);
    else await this.#file.accept();
  }

  /** @returns whether to wait for a BIRD process of this service; it is restarted after a delay */
  async #start(): Promise<boolean> {
    if (this.#process) return true;
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#startedAtMs < this.#settings.pollMs) return false;
    if ((await this.#file.read()) === undefined) return false;
    this.#startedAtMs = nowMs;
    const started = startBird(this.#settings.files, (line) => this.#events.processLogged(line));
    this.#process = started;
    this.#events.processStarted();
    void started.ended.then((how) => {
      this.#process = undefined;
      if (!this.#stopping.signal.aborted) this.#events.processEnded(how);
    });
    return true;
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
    this.#applied = text;
    this.#refusal = undefined;
    this.#events.configured(sessions.length);
  }

  async #refuse(text: string, reason: string): Promise<void> {
    await this.#file.reject();
    // Retried in each round, as BIRD may have failed to read the file; reported once.
    if (this.#refusal?.text !== text || this.#refusal.reason !== reason) this.#events.refused(reason);
    this.#refusal = { text, reason };
  }

  async #pollSessions(control: BirdControl, { sessions }: WantedConfig): Promise<void> {
    const states = readSessions(await control.run(SHOW_SESSIONS));
    this.#states = new Map(states.map((state) => [state.name, state]));
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
    return { session, state: this.#states.get(session.name) };
  }

  #disconnected(reason: string): void {
    this.#control?.close();
    this.#states = new Map();
    if (this.#isReachable !== false) this.#events.lost(reason);
    this.#isReachable = false;
  }

  /** Kills this service's BIRD so that neighbours and kernel keep its routes until it is back (RFC 4724). */
  async #stopProcess(process: BirdProcess): Promise<void> {
    const ended = new AbortController();
    const over = process.ended.then(() => ended.abort());
    await this.#control?.run('graceful restart').catch(() => undefined);
    await this.#clock.sleep(this.#control ? REPLY_TIMEOUT_MS : 0, ended.signal);
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
