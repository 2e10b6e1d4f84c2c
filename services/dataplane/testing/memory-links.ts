import { Failure } from '@podwire/shared/failure/failure';

import type { LinkListener, LinkSource, LinkWatch, NodeLink } from '../node/links.js';
import type { NodeSysctl } from '../routes/wanted.js';

/** Links in memory, which tests change, with faults on demand. */
export class MemoryLinks implements LinkSource {
  readonly #links = new Map<string, NodeLink>();
  readonly #listeners = new Set<LinkListener>();
  readonly #faults: Failure[] = [];
  /** Values by key with slashes. */
  readonly sysctls = new Map<string, string>();
  #lists = 0;

  /** The next call fails with this. */
  failNext(failure: Failure): void {
    this.#faults.push(failure);
  }

  get unusedFaults(): number {
    return this.#faults.length;
  }

  /** How often the links were listed. */
  get lists(): number {
    return this.#lists;
  }

  get watches(): number {
    return this.#listeners.size;
  }

  /** Makes or changes a link, as `ip link` would. */
  put(link: NodeLink): void {
    this.#links.set(link.name, link);
    this.#notify(link.name);
  }

  remove(name: string): void {
    this.#links.delete(name);
    this.#notify(name);
  }

  /** Reports lost events. */
  overrun(): void {
    this.#notify(undefined);
  }

  /** Ends all watches. */
  endWatches(): void {
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) listener.ended();
  }

  links(): Promise<readonly NodeLink[]> {
    this.#lists++;
    return this.#respond(() => [...this.#links.values()]);
  }

  watch(listener: LinkListener): Promise<LinkWatch> {
    return this.#respond(() => {
      this.#listeners.add(listener);
      return { close: () => void this.#listeners.delete(listener) };
    });
  }

  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]> {
    return this.#respond(() => keys.map((key) => this.sysctls.get(key.join('/')) ?? null));
  }

  writeSysctls(settings: readonly NodeSysctl[]): Promise<void> {
    return this.#respond(() => {
      for (const { key, value } of settings) {
        const path = key.join('/');
        if (!this.sysctls.has(path)) throw new Failure('KERNEL_UNSUPPORTED', `sysctl -w ${path}: ENOENT`);
        this.sysctls.set(path, value);
      }
    });
  }

  close(): Promise<void> {
    this.#listeners.clear();
    return Promise.resolve();
  }

  #notify(name: string | undefined): void {
    for (const listener of this.#listeners) listener.changed(name);
  }

  #respond<Answer>(answer: () => Answer): Promise<Answer> {
    const fault = this.#faults.shift();
    return fault ? Promise.reject(fault) : new Promise((resolve) => resolve(answer()));
  }
}
