import { spawn, type ChildProcess } from 'node:child_process';
import { mkdtemp, open, rm, writeFile, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { killProcessGroup } from '@podwire/shared/runtime/process-group';
import { z } from 'zod';

import { NO_VERDICT_DETAIL, type BaseChain, type NftProgram } from './nft.js';
import { formatTableName, type Json, type JsonObject, type NftCommand, type TableName } from './table.js';

interface ProgramNftOptions {
  /** The program. Default: `nft`, searched in the system's program directories. */
  readonly program?: string;
  /** Timeout of one run, in milliseconds; a transaction gets more for its commands. Default: 10,000. */
  readonly timeoutMs?: number;
}

interface NftResult {
  readonly output: string;
  readonly errors: string;
  readonly exitCode: number | null;
}

const DEFAULT_TIMEOUT_MS = 10_000;

/** The kernel looks a rule's sets up by their names, one after another: 1 ms among thousands. */
const COMMAND_TIMEOUT_MS = 2;

/** A fixed path, as a service may be started without /usr/sbin; a fixed language, as errors are recognized by their text. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** Most characters of nft's output in a message. */
const MAX_QUOTED = 400;

const json: z.ZodType<Json> = z.json();
const listing = z.object({ nftables: z.array(z.record(z.string(), json)) });

/** Objects of a listing that are not part of a table. */
const OUTSIDE = ['metainfo'];

/** Nftables through the `nft` program, one run per method. The network namespace is this process's. */
export class ProgramNft implements NftProgram {
  readonly #program: string;
  readonly #timeoutMs: number;

  constructor({ program = 'nft', timeoutMs = DEFAULT_TIMEOUT_MS }: ProgramNftOptions = {}) {
    this.#program = program;
    this.#timeoutMs = timeoutMs;
  }

  async read(table: TableName): Promise<readonly JsonObject[] | undefined> {
    const name = formatTableName(table);
    const finished = await this.#run(['-j', '-n', 'list', 'table', table.family, table.name], 'ignore');
    if (finished.exitCode !== 0) {
      if (finished.errors.includes('No such file or directory')) return undefined;
      throw refusal(`list table ${name}`, finished);
    }
    const parsed = listing.safeParse(parseJson(finished.output));
    if (parsed.success) return parsed.data.nftables.filter((object) => !OUTSIDE.some((key) => key in object));
    throw new Failure('KERNEL_REFUSED', `nft list table ${name} printed unexpected output: ${quoted(finished.output)}`);
  }

  async forwardChains(): Promise<readonly BaseChain[]> {
    // A node has tens of thousands of chains, as kube-proxy has some for each Service: JSON would hold up the event loop.
    const finished = await this.#run(['list', 'chains'], 'ignore');
    if (finished.exitCode !== 0) throw refusal('list chains', finished);
    return readForwardChains(finished.output);
  }

  /** All tables, also of other programs, as text. @throws Failure KERNEL_REFUSED */
  async ruleset(): Promise<string> {
    const finished = await this.#run(['list', 'ruleset'], 'ignore');
    if (finished.exitCode !== 0) throw refusal('list ruleset', finished);
    return finished.output;
  }

  apply(commands: readonly NftCommand[]): Promise<void> {
    return this.#transact(commands, []);
  }

  /** Has the kernel check a transaction without making it. @throws Failure as {@link apply} */
  check(commands: readonly NftCommand[]): Promise<void> {
    return this.#transact(commands, ['-c']);
  }

  async #transact(commands: readonly NftCommand[], flags: readonly string[]): Promise<void> {
    const input = await unnamedFile(JSON.stringify({ nftables: commands }));
    try {
      const timeoutMs = this.#timeoutMs + commands.length * COMMAND_TIMEOUT_MS;
      const finished = await this.#run([...flags, '-j', '-f', '-'], input.fd, timeoutMs);
      if (finished.exitCode !== 0) throw refusal(`a transaction of ${commands.length} commands`, finished);
    } finally {
      await input.close();
    }
  }

  #run(args: readonly string[], input: number | 'ignore', timeoutMs = this.#timeoutMs): Promise<NftResult> {
    return new Promise((resolve, reject) => {
      const child = start(this.#program, args, input);
      // `close` alone is not enough: a child of a wrapper may keep the output open.
      const timeout = setTimeout(() => {
        if (child.pid !== undefined) killProcessGroup(child.pid);
        for (const stream of child.stdio) stream?.destroy();
        reject(timeoutFailure(args, timeoutMs));
      }, timeoutMs);
      const output: Buffer[] = [];
      const errors: Buffer[] = [];
      child.stdout?.on('data', (bytes: Buffer) => output.push(bytes));
      child.stderr?.on('data', (bytes: Buffer) => errors.push(bytes));
      child.on('error', (cause) => {
        clearTimeout(timeout);
        reject(startFailure(this.#program, cause));
      });
      child.on('close', (exitCode, signal) => {
        clearTimeout(timeout);
        if (signal === null) resolve({ output: textOf(output), errors: textOf(errors), exitCode });
        else
          reject(new Failure('KERNEL_REFUSED', `nft ${args.join(' ')} was terminated by ${signal}`, WITHOUT_VERDICT));
      });
    });
  }
}

const FAMILIES = ['ip', 'ip6', 'inet'] as const;

const FORWARD_HOOKS = ['prerouting', 'forward', 'postrouting'] as const;

/** Lines such as `table ip filter {`, `chain FORWARD {`, and `type filter hook forward priority filter; policy drop;`. */
function readForwardChains(output: string): readonly BaseChain[] {
  const found: BaseChain[] = [];
  let table: TableName | undefined;
  let chain = '';
  for (const line of output.split('\n')) {
    const [word, second = '', third = ''] = line.trim().split(' ', 3);
    if (word === 'table') {
      const family = FAMILIES.find((each) => each === second);
      table = family && { family, name: third };
    } else if (word === 'chain') chain = second;
    else {
      const [, text] = /^type filter hook (\S+) /.exec(line.trim()) ?? [];
      const hook = FORWARD_HOOKS.find((each) => each === text);
      if (table && hook) found.push({ table, name: chain, hook });
    }
  }
  return found;
}

/** Runs it in a process group of its own, so that its children end with it. @throws Failure */
function start(program: string, args: readonly string[], input: number | 'ignore'): ChildProcess {
  try {
    return spawn(program, args, { env: ENVIRONMENT, stdio: [input, 'pipe', 'pipe'], detached: true });
  } catch (cause) {
    throw startFailure(program, cause);
  }
}

/**
 * An unnamed file with a text: a killed process leaves nothing to clean up. nft opens its standard input by the path /dev/stdin,
 * which does not work with the sockets that Node makes for children.
 */
async function unnamedFile(text: string): Promise<FileHandle> {
  try {
    const folder = await mkdtemp(join(tmpdir(), 'podwire-nft-'));
    try {
      const path = join(folder, 'transaction');
      await writeFile(path, text, { mode: 0o600, flag: 'wx' });
      return await open(path, 'r');
    } finally {
      await rm(folder, { recursive: true });
    }
  } catch (cause) {
    const message = `cannot write the transaction for nft below ${tmpdir()}: ${cause instanceof Error ? cause.message : ''}`;
    throw new Failure('KERNEL_REFUSED', message, { cause });
  }
}

function textOf(parts: readonly Buffer[]): string {
  return Buffer.concat(parts).toString();
}

/** One line, cut to a length suitable for logs and status messages. */
function quoted(text: string): string {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length > MAX_QUOTED ? `${line.slice(0, MAX_QUOTED)}…` : line;
}

const WITHOUT_VERDICT = { details: { [NO_VERDICT_DETAIL]: 'true' } };

/** A missing program means no nftables; any other failure to run it may be temporary. */
const MISSING: readonly unknown[] = ['ENOENT', 'EACCES'];

function startFailure(program: string, cause: unknown): Failure {
  const what = `${program} cannot be run (${messageOf(cause)})`;
  if (!MISSING.includes(codeOf(cause))) return new Failure('KERNEL_REFUSED', what, { cause, ...WITHOUT_VERDICT });
  return new Failure('KERNEL_UNSUPPORTED', `${what}: install it (apt-get install nftables)`, { cause });
}

function timeoutFailure(args: readonly string[], timeoutMs: number): Failure {
  const message = `nft ${args.join(' ')} was killed: it exceeded ${timeoutMs} ms`;
  return new Failure('KERNEL_REFUSED', message, WITHOUT_VERDICT);
}

/** Texts of errno for a missing kernel feature (EOPNOTSUPP, EPROTONOSUPPORT, EAFNOSUPPORT). */
const UNSUPPORTED = /not supported/i;

function refusal(what: string, { errors, exitCode }: NftResult): Failure {
  const text = quoted(errors);
  if (UNSUPPORTED.test(text)) {
    const message = `the kernel lacks a part of nftables for ${what}: ${text}; load nf_tables, nft_masq, nft_fib_inet`;
    return new Failure('KERNEL_UNSUPPORTED', message);
  }
  return new Failure('KERNEL_REFUSED', `nft refused ${what} (exit code ${exitCode}): ${text}`);
}
