import { Failure } from '@podwire/shared/failure/failure';

import type { Command } from '../clients/plugin-socket.js';
import { text } from '../command-line/forms.js';
import { ON_NODE } from '../command-line/options.js';
import { argument, type Verb } from '../command-line/verb.js';
import type { Fields, Section, Table } from '../output/report.js';
import { momentAndAge } from '../output/words.js';
import { msText, subjectOf } from './latency.js';

const POD = argument(text('POD'), 'NAMESPACE/NAME, NAME, or the beginning of a container ID', 'required');

/** Columns of a terminal that the bars take. */
const BAR_WIDTH = 28;

/** A container ID is recognized by this many of its characters, as crictl prints them. */
const MIN_ID_LENGTH = 4;

export const trace: Verb = {
  name: 'trace',
  about: 'on a node: where the time of a pod’s last ADD and DEL went, as a waterfall',
  details:
    'Of the last 500 commands since the start of podwire-node on the pod’s node. It needs neither tracing nor a collector.\n' +
    'With tracing, the trace ID finds the same command in the traces and in the logs of all processes.',
  positionals: [POD],
  examples: ['trace default/web-0', 'trace web-0', 'trace 4f1c9d'],
  options: [ON_NODE],
  run: async (input, { plugin, clock }) => {
    const subject = input.at(POD);
    const { node, commands } = await (await plugin()).commands();
    const ofPod = commands.filter((command) => concerns(command, subject));
    const latest = ['ADD', 'DEL'].flatMap((name) => ofPod.find(({ command }) => command === name) ?? []);
    if (latest.length === 0) throw new Failure('ENDPOINT_NOT_FOUND', notFoundText(subject, node, commands));
    return {
      sections: latest.flatMap((command) => sectionsOf(command, clock.nowMs())),
      data: () => ({ node, commands: latest }),
    };
  },
};

function concerns({ pod, containerId }: Command, subject: string): boolean {
  const isPod = pod !== null && (subject === pod.name || subject === `${pod.namespace}/${pod.name}`);
  return isPod || (subject.length >= MIN_ID_LENGTH && (containerId ?? '').startsWith(subject));
}

function notFoundText(subject: string, node: string, commands: readonly Command[]): string {
  const since = commands.at(-1)?.startedAt;
  const kept = since === undefined ? 'it has no command yet' : `its ${commands.length} last commands begin at ${since}`;
  return `pod "${subject}": no ADD or DEL on ${node}; ${kept}. Run the command on the pod's node, or use history for earlier pods`;
}

function sectionsOf(command: Command, nowMs: number): Section[] {
  const { startedAt, result, message, durationMs, addresses, traceId, containerId } = command;
  const fields: Fields = {
    kind: 'fields',
    title: `${command.command} of ${subjectOf(command)}`,
    fields: [
      ['Started', momentAndAge(new Date(startedAt), nowMs)],
      ['Result', message === null ? result : `${result}: ${message}`],
      ['Time', `${msText(durationMs)} ms`],
      ['Addresses', addresses.join(', ')],
      ['Container', containerId ?? ''],
      ['Trace', traceId ?? ''],
    ],
  };
  return [fields, waterfall(command)];
}

function waterfall({ intervals, durationMs }: Command): Table {
  return {
    kind: 'table',
    columns: [
      { right: 'START' },
      { right: 'MS' },
      'PHASE',
      `0 ms ${`${msText(durationMs)} ms`.padStart(BAR_WIDTH - 5)}`,
      'STEP',
    ],
    rows: intervals.map((interval) => [
      msText(interval.startMs),
      msText(interval.durationMs),
      interval.phase,
      bar(interval, durationMs),
      `${'  '.repeat(interval.depth)}${interval.name}`,
    ]),
    none: 'intervals: none recorded',
  };
}

/** A bar of at least one character, at its place on the line. */
export function bar(
  { startMs, durationMs }: Pick<Command['intervals'][number], 'startMs' | 'durationMs'>,
  totalMs: number,
): string {
  const column = (ms: number): number => Math.round((Math.min(Math.max(ms, 0), totalMs) / (totalMs || 1)) * BAR_WIDTH);
  const from = Math.min(column(startMs), BAR_WIDTH - 1);
  const length = Math.max(1, column(startMs + durationMs) - from);
  return `${'·'.repeat(from)}${'█'.repeat(length)}${'·'.repeat(BAR_WIDTH - from - length)}`;
}
