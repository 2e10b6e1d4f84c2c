import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect } from 'vitest';

import type { RunningService } from './service.js';
import { Caller, Place } from './testing/service.js';

type Environment = Readonly<Record<string, string>>;

/** A service in this process with an embedded datastore, and who calls it. */
export class Served {
  #begun: { readonly place: Place; readonly caller: Caller } | undefined;
  #service: RunningService | undefined;

  get place(): Place {
    return this.#now().place;
  }

  get caller(): Caller {
    return this.#now().caller;
  }

  /** With a datastore of its own. */
  async begin(env: Environment = {}): Promise<void> {
    const place = new Place();
    this.#begun = { place, caller: new Caller(place.address) };
    await this.start(env);
  }

  async end(): Promise<void> {
    this.caller.close();
    await this.stop();
    this.place.remove();
  }

  async start(env: Environment = {}): Promise<void> {
    this.#service = await this.place.start(env);
  }

  /** The datastore stays. */
  async stop(): Promise<void> {
    await this.#service?.stop();
    this.#service = undefined;
  }

  async restart(env: Environment = {}): Promise<void> {
    await this.stop();
    await this.start(env);
  }

  #now() {
    if (!this.#begun) throw new Error('the service has not begun');
    return this.#begun;
  }
}

/** A service for the tests of a file, for each with a datastore of its own. */
export function servedForEachTest(env: Environment = {}): Served {
  const served = new Served();
  beforeEach(() => served.begin(env));
  afterEach(() => served.end());
  return served;
}

export const limits = () => ({ deadlineMs: Date.now() + 60_000 });

/** The failure of a call; whatever else comes of it is the test's end. */
export async function failureOf(call: Promise<unknown>): Promise<Failure> {
  const [result] = await Promise.allSettled([call]);
  if (result.status === 'fulfilled') throw new Error('the call did not fail');
  if (result.reason instanceof Failure) return result.reason;
  throw result.reason;
}

/** What a request is refused for: `<field> <reason>` for each. */
export async function faultsOf(call: Promise<unknown>): Promise<string[]> {
  const { code, violations } = await failureOf(call);
  expect(code).toBe('INVALID_REQUEST');
  return violations.map(({ field, reason }) => `${field} ${reason}`);
}
