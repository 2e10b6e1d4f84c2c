import { PHASES } from '@podwire/shared/telemetry/phases';

import type { Command } from '../../clients/plugin-socket.js';
import { wholeNumber } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { option, type Verb } from '../../command-line/verb.js';
import type { Report, Table } from '../../output/report.js';
import { percent } from '../../output/words.js';
import { bySpeed, LISTED_COUNT, nearestRank, phasesOf, RANKS, subjectOf } from './add-summary.js';

const SLOWEST = option(
  '--slowest',
  wholeNumber('NUMBER', { min: 0, max: 100 }),
  'how many of the slowest ADDs are listed (5)',
);
export const latency: Verb = {
  name: 'latency',
  about: 'on a node: how long pods’ ADDs and DELs took, by phase; the slowest ADDs, and why ADDs failed',
  details:
    'Of the last 500 commands. The phases of a command add up to its time: see "Slow pods" in services/node/README.md.\n' +
    'A percentile is the successful command that this share of them does not exceed: the phases of one column add up.',
  options: [ON_NODE, SLOWEST],
  examples: ['latency', 'latency --slowest 20', 'latency -o json'],
  run: async (input, { plugin }) => {
    const { node, commands } = await (await plugin()).commands();
    const adds = commands.filter(({ command }) => command === 'ADD');
    const slowest = adds.toSorted((a, b) => b.durationMs - a.durationMs).slice(0, input.get(SLOWEST) ?? LISTED_COUNT);
    return {
      sections: [commandTable(node, commands), phaseTable(adds), slowestTable(slowest), ...failureTable(adds)],
      hints: slowest.length > 0 ? ['one pod in detail: podwirectl trace NAMESPACE/POD'] : [],
      data: () => latencyData(node, commands, slowest),
    };
  },
};

/** Milliseconds with three significant figures. */
export function msText(ms: number | undefined): string {
  if (ms === undefined) return '-';
  return ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : ms.toFixed(0);
}

const RANK_NAMES = Object.keys(RANKS).map((right) => ({ right: right.toUpperCase() }));

/** The successful commands at the ranks. */
function ranked(commands: readonly Command[]): (Command | undefined)[] {
  const ascending = bySpeed(commands.filter(({ result }) => result === 'success'));
  return Object.values(RANKS).map((share) => nearestRank(ascending, share));
}

function commandTable(node: string, commands: readonly Command[]): Table {
  const names = ['ADD', 'DEL', 'CHECK', 'GC'].filter((name) => commands.some(({ command }) => command === name));
  return {
    kind: 'table',
    title: `commands of ${node}, in milliseconds`,
    columns: ['COMMAND', { right: 'COUNT' }, { right: 'FAILED' }, ...RANK_NAMES],
    rows: names.map((name) => {
      const all = commands.filter(({ command }) => command === name);
      const failed = all.filter(({ result }) => result !== 'success').length;
      return [name, String(all.length), String(failed), ...ranked(all).map((each) => msText(each?.durationMs))];
    }),
    none: 'commands: none',
  };
}

function phaseTable(adds: readonly Command[]): Table {
  const successful = adds.filter(({ result }) => result === 'success');
  const divided = successful.map(phasesOf);
  const atRanks = ranked(adds).map((add) => add && phasesOf(add));
  const totalMs = successful.reduce((sum, { durationMs }) => sum + durationMs, 0);
  return {
    kind: 'table',
    title: 'successful ADDs by phase, in milliseconds',
    columns: ['PHASE', { right: 'SHARE' }, ...RANK_NAMES],
    rows: PHASES.filter((phase) => divided.some((phases) => phases.has(phase))).map((phase) => {
      const sumMs = divided.reduce((sum, phases) => sum + (phases.get(phase) ?? 0), 0);
      return [phase, percent(sumMs, totalMs), ...atRanks.map((phases) => msText(phases?.get(phase) ?? 0))];
    }),
    none: 'successful ADDs: none',
  };
}

function slowestTable(slowest: readonly Command[]): Table {
  return {
    kind: 'table',
    title: 'slowest ADDs',
    columns: ['STARTED', { right: 'MS' }, 'MOST IN', 'RESULT', 'POD', 'TRACE'],
    rows: slowest.map((command) => [
      command.startedAt,
      msText(command.durationMs),
      longestPhase(command),
      command.result,
      subjectOf(command),
      command.traceId ?? '',
    ]),
    none: 'ADDs: none',
  };
}

/** A failed ADD is often a fast one. @param adds - newest first */
function failureTable(adds: readonly Command[]): Table[] {
  const rows = adds
    .filter(({ result }) => result !== 'success')
    .slice(0, LISTED_COUNT)
    .map((command) => [command.startedAt, subjectOf(command), command.result, command.message ?? '']);
  const columns = ['STARTED', 'POD', 'RESULT', 'MESSAGE'];
  return rows.length > 0 ? [{ kind: 'table', title: 'last failed ADDs', columns, rows, none: '' }] : [];
}

function longestPhase(command: Command): string {
  const [longest] = [...phasesOf(command)].sort(([, a], [, b]) => b - a);
  return longest ? `${longest[0]} ${msText(longest[1])}` : '';
}

function latencyData(
  node: string,
  commands: readonly Command[],
  slowest: readonly Command[],
): ReturnType<Report['data']> {
  const adds = ranked(commands.filter(({ command }) => command === 'ADD'));
  const divided = adds.map((add) => add && phasesOf(add));
  const atRanks = (valueOf: (rank: number) => number | null | undefined) =>
    Object.fromEntries(Object.keys(RANKS).map((name, rank) => [name, valueOf(rank) ?? null]));
  const present = PHASES.filter((phase) => divided.some((phases) => phases?.has(phase)));
  return {
    node,
    count: commands.length,
    addMs: atRanks((rank) => adds[rank]?.durationMs),
    addPhasesMs: Object.fromEntries(
      present.map((phase) => [phase, atRanks((rank) => divided[rank] && (divided[rank].get(phase) ?? 0))]),
    ),
    slowestAdds: slowest.map((command) => ({
      startedAt: command.startedAt,
      durationMs: command.durationMs,
      result: command.result,
      pod: subjectOf(command),
      traceId: command.traceId,
      phasesMs: Object.fromEntries(phasesOf(command)),
    })),
  };
}
