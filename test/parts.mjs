// The whole test suite, cut into parts that run in parallel in separate namespaces: `test/run.mjs` starts them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

/** How a process ended, in the convention of shells: its exit code, or 128 and the number of the signal. */
export async function statusOf(child) {
  const [code, signal] = await once(child, 'exit');
  return code ?? 128 + constants.signals[signal];
}

/** Runs all tasks, each as soon as one of the workers is free. @returns their results, in the order of the tasks */
export async function queue(tasks, workersCount) {
  const results = [];
  const waiting = tasks.entries();
  const work = async () => {
    for (const [index, task] of waiting) results[index] = await task();
  };
  await Promise.all(Array.from({ length: workersCount }, work));
  return results;
}

/**
 * The running processes, so that a signal to this process ends them as well: `kill` of one process reaches no other. Each is a
 * `test/support/isolated.mjs`, which ends every process in its namespaces.
 */
export class Running {
  #children = new Set();
  #signal;

  constructor() {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => this.#stop(signal));
  }

  /** Exit code in the form of shells: a signal's number and 128. */
  get stoppedWith() {
    return this.#signal === undefined ? undefined : 128 + constants.signals[this.#signal];
  }

  /** Starts a program of Node.js and waits for its end. @returns its exit code */
  async run(args, options) {
    const child = spawn(process.execPath, args, options);
    this.#children.add(child);
    const status = await statusOf(child);
    this.#children.delete(child);
    return status;
  }

  #stop(signal) {
    this.#signal ??= signal;
    for (const child of this.#children) child.kill('SIGTERM');
  }
}

/**
 * Tests each part, `workersCount` at a time, and prints the output of one when it has ended; a single one is printed as it runs.
 * @param args - arguments of Node.js for one part, made of its folder and its selection
 * @returns name, exit code, report and output file of each part
 */
export function runParts({ running, folder, count, workersCount, args, options }) {
  const parts = Array.from({ length: count }, (_, index) => ({
    name: `part ${index + 1} of ${count}`,
    own: join(folder, `part-${index + 1}`),
    selection: count === 1 ? [] : [`--shard=${index + 1}/${count}`],
  }));
  const tasks = parts.map(({ name, own, selection }) => async () => {
    const report = join(own, 'report.json');
    const log = count === 1 ? undefined : join(own, 'output');
    if (running.stoppedWith !== undefined) return { name, status: running.stoppedWith, report, log };
    // Other users may enter it, as tests of access rights need.
    mkdirSync(own, { mode: 0o711 });
    const output = log === undefined ? 'inherit' : openSync(log, 'w');
    const env = { ...options.env, TMPDIR: own };
    const command = args({ report, selection });
    const status = await running.run(command, { ...options, env, stdio: ['ignore', output, output] });
    if (log !== undefined) {
      closeSync(output);
      process.stdout.write(`\n── ${name}\n`);
      process.stdout.write(readFileSync(log));
    }
    return { name, status, report, log };
  });
  return queue(tasks, workersCount);
}

/** The part of a failure that is shown again at the end. */
const FAILURE_LINES_COUNT = 40;

const shortened = (lines) => [
  ...lines.slice(0, FAILURE_LINES_COUNT),
  ...(lines.length > FAILURE_LINES_COUNT ? [`… ${lines.length - FAILURE_LINES_COUNT} more lines`] : []),
];

/** The failures in a report: each test that failed, and each file that could not be run. */
function failuresOf(report) {
  const read = JSON.parse(readFileSync(report, 'utf8'));
  return (read.testResults ?? []).flatMap(({ name, status, message, assertionResults }) => {
    const failed = assertionResults.filter((assertion) => assertion.status === 'failed');
    if (failed.length === 0 && status === 'failed') return [{ title: name, text: message }];
    return failed.map(({ fullName, failureMessages }) => ({
      title: `${name}: ${fullName}`,
      text: failureMessages.join('\n'),
    }));
  });
}

/** The last lines of a failed part whose report has no failed test. */
function lastWords({ name, status, log }) {
  const words = log === undefined || !existsSync(log) ? '' : readFileSync(log, 'utf8');
  const text = words.trimEnd().split('\n').slice(-FAILURE_LINES_COUNT).join('\n');
  return { title: `${name} ended with exit code ${status}`, text };
}

/**
 * Every failure of all parts, for the end of the run: a reader with only the end of a long output has them.
 * @returns one text each: the file, the test and its error; for a part whose report has none, its last lines
 */
export function failures(parts) {
  const found = parts
    .filter(({ status }) => status !== 0)
    .flatMap((part) => {
      try {
        const named = failuresOf(part.report);
        return named.length > 0 ? named : [lastWords(part)];
      } catch {
        return [lastWords(part)];
      }
    });
  return found.map(({ title, text }) => [title, ...shortened(text.split('\n')).map((line) => `  ${line}`)].join('\n'));
}

/**
 * The total of all reports. A killed part leaves no report, and counts as failed; `missing` names it.
 * @returns passed, failed and skipped tests
 */
export function total(parts) {
  const read = ({ name, status, report }) => {
    try {
      return JSON.parse(readFileSync(report, 'utf8'));
    } catch (error) {
      return { missing: `${name} ended with exit code ${status}, and left no report (${error.message})` };
    }
  };
  const reports = parts.map(read);
  const missing = reports.flatMap((report) => report.missing ?? []);
  const sum = (name) => reports.reduce((all, report) => all + (report[name] ?? 0), 0);
  return {
    missing,
    passed: sum('numPassedTests'),
    failed: sum('numFailedTests') + missing.length,
    skipped: sum('numPendingTests'),
  };
}
