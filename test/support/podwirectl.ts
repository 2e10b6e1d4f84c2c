import { Readable, Writable } from 'node:stream';

import { run as runPodwirectl } from '@podwire/ctl/run';

import { COMMAND_DEPS } from './command-deps.js';

/** How podwirectl ended. */
export interface CtlAnswer {
  readonly exitCode: number;
  /** Standard output and standard error, in the order in which they were written. */
  readonly output: string;
}

/** Runs podwirectl in this process. @param ipamSocket - path of the socket of podwire-ipam */
export async function podwirectl(ipamSocket: string, ...args: readonly string[]): Promise<CtlAnswer> {
  let output = '';
  const write = (chunk: Buffer, _: string, done: () => void): void => {
    output += chunk.toString();
    done();
  };
  const env = { PATH: process.env.PATH, PODWIRE_NODE_IPAM_ADDRESS: `unix:${ipamSocket}` };
  const around = { env, stdin: Readable.from([]), stdout: new Writable({ write }), stderr: new Writable({ write }) };
  const exitCode = await runPodwirectl(['--timeout', '60s', ...args], { process: around, ...COMMAND_DEPS });
  return { exitCode, output };
}
