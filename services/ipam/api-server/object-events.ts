import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { MERGE_PATCH, type KubernetesApi } from './api.js';

/** An Event of a pod or a Node, for `kubectl describe` and `kubectl get events`. */
export interface ObjectEvent {
  readonly kind: 'Pod' | 'Node';
  readonly name: string;
  /** Empty for a Node. */
  readonly namespace: string;
  /** Empty if unknown. Of a Node its name, as in the kubelet's Events. */
  readonly uid: string;
  readonly type: 'Normal' | 'Warning';
  /** In CamelCase: `PoolsExhausted`. */
  readonly reason: string;
  /** `Allocate`, `Attach`, `Configure`. */
  readonly action: string;
  readonly note: string;
}

interface ObjectEventsOptions {
  readonly api: Pick<KubernetesApi, 'send'>;
  readonly clock: Clock;
  readonly log: Logger;
  /** Name of this process. */
  readonly instance: string;
}

interface Series {
  readonly path: string;
  count: number;
  sentMs: number;
}

/** Where Events of objects without a namespace are. */
const NODE_NAMESPACE = 'default';

const CONTROLLER = 'podwire.dev/ipam';
const MAX_NOTE_LENGTH = 1000;

/** A repeated Event is counted, and its count is written this often, in milliseconds. */
const SERIES_MS = 300_000;

/** Events whose repetitions are counted; the oldest are forgotten. */
const MAX_SERIES = 4096;

/** Writes at once, and time for each further one, in milliseconds: thousands of pods may be refused for one reason. */
const MAX_BURST = 25;
const REFILL_MS = 1000;

const NOT_FOUND = 404;

/**
 * Events of objects (events.k8s.io/v1): one for each object and reason. The kubelet's own Event of a refused pod has the whole message
 * too, but always the same reason, and is another one with each retry. What exceeds the rate is left out until it repeats.
 */
export class ObjectEvents {
  readonly #options: ObjectEventsOptions;
  readonly #series = new Map<string, Series>();
  #tokens = MAX_BURST;
  #refilledMs = 0;
  #isFailing = false;

  constructor(options: ObjectEventsOptions) {
    this.#options = options;
  }

  /** Never fails. A failure of the API server is logged until it answers again. */
  async report(event: ObjectEvent, count = 1): Promise<void> {
    const { clock, log } = this.#options;
    const { kind, namespace, name, uid, reason } = event;
    const key = [kind, namespace, name, uid, reason].join('/');
    const known = this.#series.get(key);
    const nowMs = clock.monotonicMs();
    if (known) known.count += count;
    if ((known && nowMs - known.sentMs < SERIES_MS) || !this.#takeToken(nowMs)) return;
    try {
      await (known ? this.#repeat(key, known, nowMs) : this.#create(key, event, { count, sentMs: nowMs }));
      this.#isFailing = false;
    } catch (error) {
      if (!this.#isFailing)
        log.warn({ err: error }, 'cannot write Events to the API server; trying again with later ones');
      this.#isFailing = true;
    }
  }

  /** The condition of a node began, or ended. */
  conditionChanged(nodeName: string, condition: string, { isActive, note }: { isActive: boolean; note: string }): void {
    const [type, reason] = isActive ? (['Warning', condition] as const) : (['Normal', `${condition}Ended`] as const);
    const node = { kind: 'Node', name: nodeName, namespace: '', uid: nodeName } as const;
    void this.report({ ...node, type, reason, action: 'Configure', note });
  }

  async #create(key: string, event: ObjectEvent, first: Omit<Series, 'path'>): Promise<void> {
    const { api, clock, instance } = this.#options;
    const { kind, name, namespace, uid, type, reason, action, note } = event;
    const nowMs = clock.nowMs();
    const place = namespace === '' ? NODE_NAMESPACE : namespace;
    const collection = `/apis/events.k8s.io/v1/namespaces/${encodeURIComponent(place)}/events`;
    const eventName = `${name.slice(0, 200)}.${nowMs.toString(16)}.${this.#series.size.toString(16)}`;
    const series = { path: `${collection}/${eventName}`, ...first };
    this.#series.set(key, series);
    const [oldest = ''] = this.#series.keys();
    if (this.#series.size > MAX_SERIES) this.#series.delete(oldest);
    const body = {
      ...{ apiVersion: 'events.k8s.io/v1', kind: 'Event', metadata: { name: eventName, namespace: place } },
      ...{ eventTime: microTime(nowMs), reportingController: CONTROLLER, reportingInstance: instance },
      regarding: { apiVersion: 'v1', kind, name, ...(namespace && { namespace }), ...(uid && { uid }) },
      ...{ type, reason, action, note: note.slice(0, MAX_NOTE_LENGTH) },
    };
    await api.send({ method: 'POST', path: collection, body }).catch((error: unknown) => {
      this.#series.delete(key);
      throw error;
    });
  }

  /** An Event that the API server has removed because of its age begins again with the next one. */
  async #repeat(key: string, series: Series, sentMs: number): Promise<void> {
    const { api, clock } = this.#options;
    series.sentMs = sentMs;
    const body = { series: { count: series.count, lastObservedTime: microTime(clock.nowMs()) } };
    const patch = { method: 'PATCH', path: series.path, contentType: MERGE_PATCH, body } as const;
    if ((await api.send(patch)).status === NOT_FOUND) this.#series.delete(key);
  }

  #takeToken(nowMs: number): boolean {
    const refilled = Math.floor((nowMs - this.#refilledMs) / REFILL_MS);
    this.#tokens = Math.min(MAX_BURST, this.#tokens + refilled);
    this.#refilledMs += refilled * REFILL_MS;
    if (this.#tokens === 0) return false;
    this.#tokens--;
    return true;
  }
}

/** `2026-11-30T10:00:00.123000Z`. */
function microTime(ms: number): string {
  return new Date(ms).toISOString().replace('Z', '000Z');
}
