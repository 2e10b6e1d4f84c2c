import type { Command, Commands } from '@podwire/ctl/clients/plugin-socket';
import { nearestRank, phasesOf, subjectOf } from '@podwire/ctl/commands/node/latency';
import { PHASES, type Phase } from '@podwire/shared/telemetry/phases';

/** One ADD, as the page shows it. */
export interface Add extends Pick<
  Command,
  'startedAt' | 'result' | 'message' | 'durationMs' | 'addresses' | 'containerId' | 'traceId' | 'intervals'
> {
  /** Stable while podwire-node keeps the command. */
  readonly id: string;
  /** NAMESPACE/NAME, or the container ID. */
  readonly pod: string;
  /** Phases in the order of stacking. They add up to `durationMs`. */
  readonly phases: readonly { readonly phase: Phase; readonly ms: number }[];
}

/** The ADDs of a node, for the page. */
export interface LatencySummary {
  readonly node: string;
  readonly addCount: number;
  readonly failedCount: number;
  /** Start of the earliest ADD; null without any. */
  readonly since: string | null;
  /** Phases of the listed percentiles, in the order of stacking. */
  readonly phases: readonly Phase[];
  /** The successful ADD at each rank: its phases add up, separate percentiles do not. */
  readonly percentiles: readonly { readonly name: string; readonly add: Add }[];
  /** Slowest successful ADDs. */
  readonly slowest: readonly Add[];
  /** Newest first. */
  readonly failed: readonly Add[];
  /** Newest first. */
  readonly newest: readonly Add[];
}

const RANKS = { p50: 0.5, p90: 0.9, p99: 0.99 };
const LISTED_COUNT = 5;

/** Percentiles and lists of a node's recent ADDs. */
export function summarize({ node, commands }: Commands): LatencySummary {
  const adds = commands.filter(({ command }) => command === 'ADD').map(addOf);
  const failed = adds.filter(({ result }) => result !== 'success');
  const ascending = adds
    .filter(({ result }) => result === 'success')
    .toSorted((a, b) => a.durationMs - b.durationMs || a.startedAt.localeCompare(b.startedAt));
  const percentiles = Object.entries(RANKS).flatMap(([name, share]) => {
    const add = nearestRank(ascending, share);
    return add ? [{ name, add }] : [];
  });
  return {
    node,
    addCount: adds.length,
    failedCount: failed.length,
    since: adds.at(-1)?.startedAt ?? null,
    phases: PHASES.filter((phase) => percentiles.some(({ add }) => add.phases.some((part) => part.phase === phase))),
    percentiles,
    slowest: ascending.slice(-LISTED_COUNT).reverse(),
    failed: failed.slice(0, LISTED_COUNT),
    newest: adds.slice(0, LISTED_COUNT),
  };
}

function addOf(command: Command): Add {
  const { startedAt, result, message, durationMs, addresses, containerId, traceId, intervals } = command;
  const times = phasesOf(command);
  return {
    id: `${startedAt}/${containerId ?? ''}`,
    pod: subjectOf(command),
    phases: PHASES.map((phase) => ({ phase, ms: times.get(phase) ?? 0 })).filter(({ ms }) => ms > 0),
    ...{ startedAt, result, message, durationMs, addresses, containerId, traceId, intervals },
  };
}
