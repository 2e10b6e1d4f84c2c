import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';

import { judge } from './judge.js';
import { run } from './machine/program.js';
import { leases } from './machine/residue.js';
import { readOptions, USAGE, UsageError, type Options } from './options.js';
import { jsonReport, junitReport } from './report/machines.js';
import { mustFailures, summaryText, verdictText } from './report/people.js';
import type { Subject } from './subject.js';

/** The environment of the process. */
export interface Invocation {
  readonly args: readonly string[];
  /** Path of Node.js and of this program, to start it again inside namespaces. */
  readonly self: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly pid: number;
  readonly isRoot: boolean;
  readonly chance: () => number;
  readonly write: (text: string) => void;
  readonly complain: (text: string) => void;
}

const NOTHING_JUDGED = 254;
const MOST_FAILURES = 200;

/** Set in the process that runs inside the namespaces. */
const INSIDE = 'PODWIRE_CONFORMANCE_INSIDE';

const NAMESPACES = ['--net', '--mount', '--propagation', 'private', '--pid', '--fork', '--kill-child', '--mount-proc'];

/** The plugin sees no object of the machine: not its namespaces, nor the records of plugins for its containers. */
const SET_UP =
  'mkdir -p /run/netns /var/lib/cni && mount -t tmpfs tmpfs /run/netns && mount -t tmpfs tmpfs /var/lib/cni && ip link set lo up && exec "$@"';

/** Tests the plugin of the command line. @returns the exit status */
export async function runCommandLine(invocation: Invocation): Promise<number> {
  const { args, write, complain } = invocation;
  try {
    const seed = Math.floor(invocation.chance() * 1_000_000_000);
    const options = readOptions(args, { exists: existsSync, read: (path) => readFileSync(path, 'utf8'), seed });
    if (options === undefined) {
      write(USAGE);
      return 0;
    }
    if (!invocation.isRoot) throw new UsageError('network namespaces need root: run this with sudo');
    const isInside = invocation.env[INSIDE] !== undefined || options.subject.isResident === true;
    return isInside ? await judged(options, invocation) : inside(invocation);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    complain(`podwire-conformance: ${text}\n${error instanceof UsageError ? 'See --help.\n' : ''}`);
    return NOTHING_JUDGED;
  }
}

function inside({ self, args, env }: Invocation): number {
  const command = [...NAMESPACES, 'sh', '-c', SET_UP, 'sh', ...self, ...args];
  const { status, error } = spawnSync('unshare', command, { stdio: 'inherit', env: { ...env, [INSIDE]: '1' } });
  if (error !== undefined) throw new Error(`unshare (Debian: util-linux): ${error.message}`);
  return status ?? NOTHING_JUDGED;
}

async function judged(options: Options, { pid, write }: Invocation): Promise<number> {
  const subject = withHoldings(options);
  const { seed, isVerbose, junit, json } = options;
  write(`${subject.program}, CNI specification 1.1.0, seed ${seed}\n\n`);
  const onVerdict = (verdict: Parameters<typeof verdictText>[0]) => write(verdictText(verdict, { isVerbose }));
  const verdicts = await judge({ ...options, subject, pid, onVerdict });
  write(summaryText(subject.name, verdicts));
  const report = { name: subject.name, seed, verdicts };
  if (junit !== undefined) writeFileSync(junit, junitReport(report));
  if (json !== undefined) writeFileSync(json, jsonReport(report));
  return Math.min(mustFailures(verdicts), MOST_FAILURES);
}

function withHoldings({ subject, leases: folder, holdings: command }: Options): Subject {
  if (folder === undefined && command === undefined) return subject;
  const inFolder = () => (folder === undefined ? [] : leases(folder));
  const ofCommand = () => (command === undefined ? [] : run('sh', '-c', command).split('\n').filter(Boolean));
  return { ...subject, holdings: () => Promise.resolve([...inFolder(), ...ofCommand()]) };
}
