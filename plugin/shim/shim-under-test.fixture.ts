// The shim as a test file has it: built once, with what answers it stopped after each test.
import type { Socket } from 'node:net';

import { afterAll, afterEach, beforeAll, expect } from 'vitest';

import {
  buildShim,
  removeBuild,
  startRawPeer,
  startResident,
  type Build,
  type Limits,
  type Listening,
  type Outcome,
  type Resident,
} from '../testing/shim.js';

export const CONFIGURATION = '{"cniVersion":"0.4.0","name":"net","type":"podwire"}';

export class ShimUnderTest {
  #build: Build | undefined;
  readonly #listening: Listening[] = [];

  /** Called at the top of a file. */
  constructor(limits: Limits) {
    beforeAll(() => {
      this.#build = buildShim(limits);
    }, 120_000);
    afterAll(() => removeBuild(this.build));
    afterEach(async () => {
      await Promise.all(this.#listening.splice(0).map((server) => server.close()));
    });
  }

  get build(): Build {
    if (!this.#build) throw new Error('the shim is built before the first test');
    return this.#build;
  }

  async resident(
    answer: Parameters<typeof startResident>[1],
    path: string = this.build.defaultSocket,
  ): Promise<Resident> {
    const started = await startResident(path, answer);
    this.#listening.push(started);
    return started;
  }

  async rawPeer(speak: (connection: Socket) => void): Promise<void> {
    this.#listening.push(await startRawPeer(this.build.defaultSocket, speak));
  }
}

/** The CNI error document on stdout, after checking what holds for every one of them. */
export function errorOf(outcome: Outcome): Record<string, unknown> {
  expect({ exitCode: outcome.exitCode, signal: outcome.signal, stderr: outcome.stderr }).toEqual({
    exitCode: 1,
    signal: null,
    stderr: '',
  });
  const document: unknown = JSON.parse(outcome.stdout);
  expect(document).toEqual({
    cniVersion: expect.any(String),
    code: expect.any(Number),
    msg: expect.stringMatching(/./),
    details: expect.stringMatching(/./),
  });
  // containerd takes a DEL whose error says one of these for done.
  expect(outcome.stdout).not.toMatch(/not found|no such file or directory/i);
  return Object.fromEntries(Object.entries(document ?? {}));
}
