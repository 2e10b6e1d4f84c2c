// Pods that come and go while the page is open, so that it has something new to show.
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { makePod, runShim } from './cni.mjs';

const INTERVAL_MS = 1000;

/** Pods at a time; each has a network namespace that its successors use again. */
const POD_COUNT = 4;

/** Every so many pods, one asks for an address outside of every pool, so that the page has a failed ADD. */
const REFUSED_EVERY = 8;
const FOREIGN_ADDRESS = '192.0.2.1';

/** An open page asks every two seconds; a browser slows down a page in the background. */
const VIEWED_MS = 5000;

export class Rollout {
  #podwire;
  #hasIpam;
  #netns;
  #added = [];
  #viewedUntilMs = 0;
  #isStopping = false;
  #count = 0;
  #run;

  /** @param options - hasIpam: whether podwire-ipam runs, which refuses foreign addresses */
  constructor({ folder, podwire, hasIpam }) {
    this.#podwire = podwire;
    this.#hasIpam = hasIpam;
    this.#netns = Array.from({ length: POD_COUNT }, (_, index) => makePod(folder, `rollout-${index}`));
    this.#run = this.#loop();
    this.#run.catch(() => undefined);
  }

  /** The page is open. */
  viewed = () => {
    this.#viewedUntilMs = performance.now() + VIEWED_MS;
  };

  /** Rejects when a pod cannot be removed. */
  failed() {
    return this.#run;
  }

  /** Removes the pods. */
  async stop() {
    this.#isStopping = true;
    // Ctrl-C also ends a shim that runs; its pod is removed below.
    await this.#run.catch(() => undefined);
    while (this.#added.length > 0) await this.#removeOldest();
  }

  async #loop() {
    while (!this.#isStopping) {
      if (performance.now() < this.#viewedUntilMs) await this.#replaceOne();
      await sleep(INTERVAL_MS);
    }
  }

  async #replaceOne() {
    const number = this.#count++;
    if (this.#added.length === POD_COUNT) await this.#removeOldest();
    const pod = { name: `rollout-${number}`, netns: this.#netns[number % POD_COUNT] };
    this.#added.push(pod);
    const isRefused = number % REFUSED_EVERY === REFUSED_EVERY - 1 && this.#hasIpam();
    const args = isRefused ? { IP: FOREIGN_ADDRESS } : {};
    // The page shows why an ADD failed.
    await runShim(this.#podwire, { command: 'ADD', ...pod, args }).catch(() => undefined);
  }

  async #removeOldest() {
    const pod = this.#added.shift();
    await runShim(this.#podwire, { command: 'DEL', ...pod });
  }
}
