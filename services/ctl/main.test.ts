import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';

import { PoolServiceService, type ListPoolsResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from './testing/ctl.js';

const MAIN = builtFile(fileURLToPath(new URL('./main.ts', import.meta.url)));

let fakes: Fakes;
beforeEach(() => {
  // Traces for the fake services, which run in this process.
  propagateTraces();
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

/** Runs the program against a service whose pools cannot be listed. @returns what it prints on the standard error */
async function poolsFailWith(error: Error): Promise<string> {
  await fakes.serve(
    fake(PoolServiceService.listPools, (): ListPoolsResponse => {
      throw error;
    }),
  );
  const args = [MAIN, '--ipam', `unix:${fakes.socket}`, 'get', 'ippools'];
  return new Promise((resolve) => execFile(process.execPath, args, (_error, _stdout, stderr) => resolve(stderr)));
}

test('a failure that refers to a service’s log names its trace ID', async () => {
  const stderr = await poolsFailWith(new Error('a defect'));
  expect(fakes.logged).toHaveLength(1);
  expect(fakes.logged[0]?.trace_id).toMatch(/^[0-9a-f]{32}$/);
  expect(stderr).toContain(`under trace ${String(fakes.logged[0]?.trace_id)} (INTERNAL)`);
});

test('another failure names no trace ID', async () => {
  const stderr = await poolsFailWith(new Failure('STORE_CORRUPT', 'pool a cannot be read'));
  expect(stderr).toContain('pool a cannot be read (STORE_CORRUPT)');
});
