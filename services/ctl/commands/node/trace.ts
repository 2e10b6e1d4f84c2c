import { Failure } from '@podwire/shared/failure/failure';

import type { Command } from '../../clients/plugin-socket.js';
import { podOfSubject, SUBJECT, SUBJECT_TEXT, text } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { argument, option, type Input, type Verb } from '../../command-line/verb.js';
import type { Fields, Section, Table } from '../../output/report.js';
import { momentAndAge } from '../../output/words.js';
import { NAMESPACE } from '../../resources/reading.js';
import { phasesOf, subjectOf as podText } from './add-summary.js';
import { msText } from './latency.js';

const SUBJECT_ARGUMENT = argument(SUBJECT, SUBJECT_TEXT, 'optional');
const CONTAINER = option('--container', text('ID'), 'a container by the beginning of its ID, instead of a pod');

/** Columns of a terminal that the bars take. */
const BAR_WIDTH = 28;

export const trace: Verb = {
  name: 'trace',
  about: 'on a node: where the time of a pod’s last ADD and DEL went, and why they failed',
  details:
    'Of the last 500 commands of the pod’s node. It needs neither tracing nor a collector.\n' +
    'With tracing, the trace ID finds the same command in the traces and in the logs of all processes.',
  positionals: [SUBJECT_ARGUMENT],
  options: [ON_NODE, NAMESPACE, CONTAINER],
  examples: ['trace default/web-0', 'trace 10.65.0.7', 'trace --container 4f1c9d'],
  run: async (input, { plugin, clock }) => {
    const { node, commands } = await (await plugin()).commands();
    const { name: subject, concerns } = subjectOf(input, commands);
    const ofPod = commands.filter(concerns);
    const latest = ['ADD', 'DEL'].flatMap((name) => ofPod.find(({ command }) => command === name) ?? []);
    if (latest.length === 0) throw new Failure('ENDPOINT_NOT_FOUND', notFoundText(subject, node, commands));
    return {
      sections: latest.flatMap((command) => sectionsOf(command, clock.nowMs())),
      data: () => ({ node, commands: latest }),
    };
  },
};

interface Wanted {
  /** For messages. */
  readonly name: string;
  readonly concerns: (command: Command) => boolean;
}

/** @throws Failure INVALID_REQUEST where the command line names nothing, or two things */
function subjectOf(input: Input, commands: readonly Command[]): Wanted {
  const [subject] = input.rest(SUBJECT_ARGUMENT);
  const container = input.get(CONTAINER);
  if ((subject === undefined) === (container === undefined))
    throw new Failure('INVALID_REQUEST', 'ADDRESS|POD: name an address, a pod, or a container with --container');
  if (!subject) {
    const name = container ?? '';
    return { name: `container "${name}"`, concerns: ({ containerId }) => (containerId ?? '').startsWith(name) };
  }
  if ('address' in subject) {
    const { address } = subject;
    const hasAddress = ({ addresses }: Command): boolean => addresses.some((each) => each.split('/')[0] === address);
    // A DEL has no address.
    const ids = commands.filter(hasAddress).map(({ containerId }) => containerId);
    return { name: address, concerns: ({ containerId }) => containerId !== null && ids.includes(containerId) };
  }
  const { namespace, name } = podOfSubject(subject, input.get(NAMESPACE));
  return {
    name: `pod "${namespace}/${name}"`,
    concerns: ({ pod }) => pod !== null && pod.namespace === namespace && pod.name === name,
  };
}

function notFoundText(subject: string, node: string, commands: readonly Command[]): string {
  const since = commands.at(-1)?.startedAt;
  const kept = since === undefined ? 'it has no command yet' : `its ${commands.length} last commands begin at ${since}`;
  return `${subject}: no ADD or DEL on ${node}; ${kept}. Run the command on the pod's node, or use history for earlier pods`;
}

function sectionsOf(command: Command, nowMs: number): Section[] {
  const { startedAt, result, message, durationMs, addresses, traceId, containerId } = command;
  const fields: Fields = {
    kind: 'fields',
    title: `${command.command} of ${podText(command)}`,
    fields: [
      ['Started', momentAndAge(new Date(startedAt), nowMs)],
      ['Result', message === null ? result : `${result}: ${message}`],
      ['Time', `${msText(durationMs)} ms`],
      ['Phases', phasesText(command)],
      ['Addresses', addresses.join(', ')],
      ['Container', containerId ?? ''],
      ['Trace', traceId ?? ''],
    ],
  };
  return [fields, waterfall(command)];
}

/** Longest first: the time of the plugin itself is no interval, only what the intervals leave. */
function phasesText(command: Command): string {
  const longestFirst = [...phasesOf(command)].toSorted(([, a], [, b]) => b - a);
  return longestFirst.map(([phase, ms]) => `${phase} ${msText(ms)} ms`).join(', ');
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
