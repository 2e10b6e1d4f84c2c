import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { codeOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PolicyView } from './policy-view.js';

/** Beside the records of attachments, on tmpfs. */
const POLICIES = 'network-policies.bin';
const SETS = 'network-policy-sets.bin';
const WRITING = '.writing';

const FILE_MODE = 0o600;

/** Sets have thousands of members and change often; a stored set may be as old as this. */
const SETS_AFTER_MS = 5000;

/** Receives the store's events. */
export interface StoreEvents {
  /** The stored policies cannot be read or written; pods without a known policy are isolated after a restart. */
  policiesNotStored(path: string, error: unknown): void;
}

interface PolicyStoreOptions {
  /** Directory of the records. */
  readonly recordsDirectory: string;
  readonly clock: Clock;
  readonly events: StoreEvents;
}

/**
 * Keeps the view of the policies in files, for a restart while podwire-ipam does not run. They have the form of podwire-ipam's
 * messages. As with records, a killed process leaves the old file or the new one, and a reboot clears them together with the pods.
 */
export class PolicyStore {
  readonly #options: PolicyStoreOptions;
  readonly #stopping = new AbortController();
  #view: PolicyView | undefined;
  #isSaveDue = false;

  constructor(options: PolicyStoreOptions) {
    this.#options = options;
  }

  /** Restores a view. @returns `none`: policies were never on in this boot */
  load(view: PolicyView): 'none' | 'loaded' {
    this.#view = view;
    try {
      const policies = this.#read(POLICIES);
      if (!policies) return 'none';
      view.restore(policies, this.#read(SETS));
    } catch (error) {
      this.#options.events.policiesNotStored(this.#path(POLICIES), error);
    }
    return 'loaded';
  }

  /** Stores profiles and pods. */
  save(): void {
    this.#write(POLICIES, (view) => view.encodePolicies());
  }

  /** Stores the sets in a while. */
  saveSetsLater(): void {
    if (this.#isSaveDue) return;
    this.#isSaveDue = true;
    void this.#options.clock.sleep(SETS_AFTER_MS, this.#stopping.signal).then((outcome) => {
      this.#isSaveDue = false;
      if (outcome === 'elapsed') this.#saveSets();
    });
  }

  /** Stores sets that are not stored yet. */
  stop(): void {
    if (this.#isSaveDue) this.#saveSets();
    this.#stopping.abort();
  }

  /** Removes the files. Idempotent. */
  remove(): void {
    for (const path of policyFiles(this.#options.recordsDirectory)) rmSync(path, { force: true });
  }

  #saveSets(): void {
    this.#write(SETS, (view) => view.encodeSets());
  }

  #write(name: string, encode: (view: PolicyView) => Uint8Array): void {
    const path = this.#path(name);
    if (!this.#view) return;
    try {
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path + WRITING, encode(this.#view), { mode: FILE_MODE });
      renameSync(path + WRITING, path);
    } catch (error) {
      this.#options.events.policiesNotStored(path, error);
    }
  }

  #read(name: string): Buffer | undefined {
    try {
      return readFileSync(this.#path(name));
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  #path(name: string): string {
    return join(dirname(this.#options.recordsDirectory), name);
  }
}

/** Paths of the stored policies. */
export function policyFiles(recordsDirectory: string): readonly string[] {
  return [POLICIES, SETS].map((name) => join(dirname(recordsDirectory), name));
}
