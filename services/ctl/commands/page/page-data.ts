import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { NodeContact } from '@podwire/proto/podwire/ipam/v1/cluster';
import { Failure } from '@podwire/shared/failure/failure';
import { forEachConcurrently } from '@podwire/shared/reconcile/concurrently';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Commands } from '../../clients/plugin-socket.js';
import type { Context } from '../../clients/services.js';
import { failureLine } from '../../output/words.js';
import type { PageData } from '../../page/data.js';
import { listPools } from '../../resources/ippool.js';
import { summarizeAdds } from '../node/add-summary.js';
import { conditionTable } from '../node/node.js';
import { nodeTable, poolTable, readFacts } from '../status/status.js';
import { problemsOf } from '../status/problems.js';

/** The services that the page is read from. */
export type PageSources = Pick<Context, 'ipam' | 'dataplane' | 'plugin' | 'clock' | 'restartTimeout'>;

/** Nodes and pools change slowly, and many nodes are long to list. */
const STATE_INTERVAL_MS = 5000;

/** Nodes whose commands are read for one request, up to 1 MB each; further nodes take turns. */
const NODES_AT_ONCE = 8;
const NODE_TIMEOUT_MS = 2000;

/** ADDs and DELs that are kept of all nodes: some 50 MB. */
const KEPT_COUNT = 20_000;

type State = Pick<PageData, 'problems' | 'tables' | 'faults'>;

/** A reader of the page of one node. Commands do not need podwire-ipam. */
export function nodePage(sources: PageSources): () => Promise<PageData> {
  const readState = eachInterval(sources, async (): Promise<State> => {
    const parts = await Promise.all([
      attempt(async () => {
        const { conditions } = await sources.dataplane.call(NodeServiceService.getNodeStatus, {});
        return conditionTable(conditions);
      }),
      attempt(async () => poolTable(await listPools(sources.ipam))),
    ]);
    const tables = parts.flatMap((part) => (part instanceof Failure ? [] : [part]));
    return {
      problems: [],
      tables,
      faults: parts.flatMap((part) => (part instanceof Failure ? failureLine(part) : [])),
    };
  });
  return async () => {
    sources.restartTimeout();
    const [commands, state] = await Promise.all([sources.plugin().then((plugin) => plugin.commands()), readState()]);
    return { scope: `Node ${commands.node}`, adds: summarizeAdds([commands]), ...state, actions: [] };
  };
}

/** A reader of the page of all nodes, through podwire-ipam. */
export function clusterPage(sources: PageSources): () => Promise<PageData> {
  const commands = new NodeCommands(sources);
  const readState = eachInterval(sources, async () => {
    const facts = await readFacts(sources, { hasAudit: false });
    const problems = problemsOf(facts);
    return { facts, state: { problems, tables: [nodeTable(facts, problems), poolTable(facts.pools)] } };
  });
  return async () => {
    sources.restartTimeout();
    const { facts, state } = await readState();
    const connected = facts.nodes.filter(({ contact }) => contact === NodeContact.NODE_CONTACT_CONNECTED);
    const { all, faults } = await commands.read(connected.map(({ name }) => name));
    const scope = `Cluster of ${formatCount(facts.nodes.length, 'node')}`;
    return { scope, adds: summarizeAdds(all), ...state, faults, actions: [] };
  };
}

/** The recent commands of many nodes. */
class NodeCommands {
  readonly #sources: PageSources;
  readonly #read = new Map<string, { readonly commands: Commands; readonly fault: string; readonly atMs: number }>();

  constructor(sources: PageSources) {
    this.#sources = sources;
  }

  /** Reads the nodes again that were read the longest time ago. A node that does not answer keeps its earlier commands. */
  async read(nodes: readonly string[]) {
    const { clock, plugin } = this.#sources;
    for (const name of this.#read.keys()) if (!nodes.includes(name)) this.#read.delete(name);
    const waiting = nodes.toSorted((a, b) => (this.#read.get(a)?.atMs ?? 0) - (this.#read.get(b)?.atMs ?? 0));
    const keptCount = Math.ceil(KEPT_COUNT / nodes.length);
    await forEachConcurrently(waiting.slice(0, NODES_AT_ONCE), NODES_AT_ONCE, async (node) => {
      const earlier = this.#read.get(node)?.commands ?? { node, commands: [] };
      const answer = await attempt(async () => (await plugin({ node, limitMs: NODE_TIMEOUT_MS })).commands());
      const isRead = !(answer instanceof Failure);
      const commands = isRead ? { ...answer, commands: answer.commands.slice(0, keptCount) } : earlier;
      this.#read.set(node, { commands, fault: isRead ? '' : failureLine(answer), atMs: clock.monotonicMs() });
    });
    const read = [...this.#read.values()];
    const unread = nodes.length - read.length;
    // A refusal of the caller is the same for each node.
    const faults = new Set(read.flatMap(({ fault }) => (fault === '' ? [] : [fault])));
    const missing = unread > 0 ? [`the ADDs of ${formatCount(unread, 'node')} follow`] : [];
    return { all: read.map(({ commands }) => commands), faults: [...faults, ...missing] };
  }
}

/** A function that reads again after {@link STATE_INTERVAL_MS}, and answers with the last value until the next one is there. */
function eachInterval<Value>({ clock }: PageSources, read: () => Promise<Value>): () => Promise<Value> {
  let latest: Promise<Value> | undefined;
  let nextAtMs = 0;
  return () => {
    if (clock.monotonicMs() >= nextAtMs) {
      nextAtMs = Infinity;
      const next = read();
      const end = (): void => {
        latest = next;
        nextAtMs = clock.monotonicMs() + STATE_INTERVAL_MS;
      };
      next.then(end, end);
      latest ??= next;
    }
    return latest ?? read();
  };
}

/** @returns the value, or the failure of its reading */
async function attempt<Value>(read: () => Promise<Value>): Promise<Value | Failure> {
  try {
    return await read();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
}
