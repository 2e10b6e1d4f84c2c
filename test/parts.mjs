// Everything that is tested, cut into parts that run side by side in namespaces of their own: `test/run.mjs` starts them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

/** How a process ended, as a shell tells it: its exit code, or 128 and the number of the signal. */
export async function statusOf(child) {
  const [code, signal] = await once(child, 'exit');
  return code ?? 128 + constants.signals[signal];
}

/** Carries out all tasks, each as soon as one of so many workers is free. @returns their results, in the order of the tasks */
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
 * What runs at the moment, so that a signal to this process ends it as well: `kill` of one process reaches no other. Each is a
 * `test/support/isolated.mjs`, which takes all that is in its namespaces along.
 */
export class Running {
  #children = new Set();
  #signal;

  constructor() {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => this.#stop(signal));
  }

  /** Where a signal has come, its number and 128: the exit code that shells know. */
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
 * Has each part tested, `workersCount` at a time, and shows what one has written once it has ended; a single one is seen as it runs.
 * @param args - arguments of Node.js for one part, made of its folder and what selects it
 * @returns of each part its name, its exit code, the report that it is to have written, and where its output is kept
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
    // Others may pass through, as tests of access rights need.
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

/** How much of one failure is shown again at the end. */
const FAILURE_LINES_COUNT = 40;

const shortened = (lines) => [
  ...lines.slice(0, FAILURE_LINES_COUNT),
  ...(lines.length > FAILURE_LINES_COUNT ? [`… ${lines.length - FAILURE_LINES_COUNT} more lines`] : []),
];

/** What a report says of each test that failed, and of each file that could not be run. */
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

/** What a part that ended with a failure has written last, where its report does not say which test failed. */
function lastWords({ name, status, log }) {
  const words = log === undefined || !existsSync(log) ? '' : readFileSync(log, 'utf8');
  const text = words.trimEnd().split('\n').slice(-FAILURE_LINES_COUNT).join('\n');
  return { title: `${name} ended with exit code ${status}`, text };
}

/**
 * Every failure of all parts, to be shown at the end of the run: whoever keeps only the end of a long output has them.
 * @returns one text each: the file, the test and what it met; of a part whose report names none, its last lines
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
 * What the reports of all parts say together. A part that was killed leaves none, and counts as one that failed; `missing` says which.
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
