import type { MethodDefinition } from '@grpc/grpc-js';
import { DiagnosticsServiceService } from '@podwire/proto/podwire/diagnostics/v1/diagnostics';
import { ClusterServiceService } from '@podwire/proto/podwire/ipam/v1/cluster';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { forEachConcurrently } from '@podwire/shared/reconcile/concurrently';

import { Archive } from '../clients/archive.js';
import { allPages, type Context, type Service } from '../clients/services.js';
import { DURATION_MS, text } from '../command-line/forms.js';
import { option, repeatedOption, type Verb } from '../command-line/verb.js';
import { ContractJson, renderData } from '../output/data.js';
import { DONE, PROBLEM_FOUND, sentence, type Report, type Table } from '../output/report.js';
import { failureLine } from '../output/words.js';
import { listNodeStates } from '../resources/node.js';
import { manifestData, NO_FILTER } from '../resources/resource.js';
import { KINDS, loadResource, type KindEntry } from '../resources/table.js';

const SINCE = option(
  '--since',
  DURATION_MS,
  'log lines of this time only, such as 1h (the last 2000 lines of each process)',
);
const NODES = repeatedOption('--node', text('NAME'), 'only this node, besides the cluster (all nodes)');
const FILE = option(
  '--file',
  text('FILE'),
  'the archive; - for the standard output (podwire-sysdump-TIME.tar.gz in the working directory)',
);

/** Nodes that are asked at once: podwire-ipam passes their answers on. */
const NODES_AT_ONCE = 8;

/** Timeout without --timeout: a node sends some megabytes. */
const TIMEOUT_MS = 300_000;

/** A part of the cluster that files come from. */
interface Source {
  readonly name: string;
  filesCount: number;
  bytes: number;
  /** Why files are missing; undefined: none is. */
  fault?: string;
}

export const sysdump: Verb = {
  name: 'sysdump',
  about: 'one archive with the state of the cluster and its nodes, for support',
  details:
    'Objects, their changes, status, audit, and of podwire-ipam and each node: versions, settings, metrics, the last log\n' +
    'lines, and of nodes links, addresses, routes, rules, neighbours, nftables, records, journal and recent commands. Nodes that\n' +
    'do not answer are named in the archive. It has names and addresses of pods, but no password, token or private key.\n' +
    'Exit code 4: a part is missing.',
  options: [SINCE, NODES, FILE],
  examples: ['sysdump', 'sysdump --since 1h --node node-1', 'sysdump --file -'],
  run: async (input, context) => {
    const { clock, restartTimeout, stdout, note } = context;
    restartTimeout(TIMEOUT_MS);
    const now = new Date(clock.nowMs());
    const folder = `podwire-sysdump-${now.toISOString().replace(/[-:]|\.\d+/g, '')}`;
    const archive = new Archive(input.get(FILE) ?? `${folder}.tar.gz`, { folder, time: now, stdout });
    const sinceMs = input.get(SINCE);
    const since = sinceMs === undefined ? undefined : new Date(now.getTime() - sinceMs);
    const sources = await collectAll({ context, archive, since, nodes: input.all(NODES) });
    await archive.add('sources.json', renderData(dataOf(sources), 'json'));
    await archive.finish();
    const isPrinted = archive.path === '-';
    if (isPrinted) for (const { name, fault = 'complete' } of sources) note(`${name}: ${fault}`);
    return {
      isPrinted,
      sections: [sourceTable(sources), sentence(`written to ${archive.path}`)],
      data: () => ({ file: archive.path, sources: dataOf(sources) }),
      exitCode: sources.every(({ fault }) => fault === undefined) ? DONE : PROBLEM_FOUND,
    };
  },
};

interface Collection {
  readonly context: Context;
  readonly archive: Archive;
  readonly since: Date | undefined;
  /** Empty: all. */
  readonly nodes: readonly string[];
}

async function collectAll({ context, archive, since, nodes }: Collection): Promise<Source[]> {
  const { ipam } = context;
  const collect = (name: string, service: () => Promise<Service>): Promise<Source> =>
    collectFrom({ name, filesCount: 0, bytes: 0 }, archive, async (add) => {
      const of = await service();
      for await (const { file, part } of of.stream(DiagnosticsServiceService.collect, { since })) {
        requireInside(file);
        await add(file, part);
      }
    });
  const cluster = await collectFrom({ name: 'cluster', filesCount: 0, bytes: 0 }, archive, (add) =>
    addCluster(context, add),
  );
  const podwireIpam = await collect('podwire-ipam', () => Promise.resolve(ipam));
  const names = nodes.length > 0 ? nodes : await namesOfNodes(ipam);
  // A node without podwire-ipam still has the state of its own.
  if (!names) return [cluster, podwireIpam, await collect('node', () => Promise.resolve(context.dataplane))];
  const collected = new Map<string, Source>();
  await forEachConcurrently(names, NODES_AT_ONCE, async (name) => {
    collected.set(name, await collect(`nodes/${name}`, () => context.onNode(name)));
  });
  return [cluster, podwireIpam, ...names.flatMap((name) => collected.get(name) ?? [])];
}

/** @returns undefined where podwire-ipam does not name them; the failure is noted for the cluster */
async function namesOfNodes(ipam: Service): Promise<string[] | undefined> {
  try {
    return (await listNodeStates(ipam)).map(({ name }) => name);
  } catch (error) {
    if (error instanceof Failure) return undefined;
    throw error;
  }
}

type Add = (file: string, part: Uint8Array | string) => Promise<void>;

/** A node is trusted with files of its own folder only: programs that extract archives may follow other names. */
function requireInside(file: string): void {
  if (file.split('/').every((part) => !['', '.', '..'].includes(part))) return;
  throw new Failure('INTERNAL', `file ${JSON.stringify(file)}: is no name within a folder; further files are left out`);
}

/** Puts the parts of each file together, and notes the failure that ends the source in the file `error.txt`. */
async function collectFrom(source: Source, archive: Archive, collect: (add: Add) => Promise<void>): Promise<Source> {
  let parts: Uint8Array[] = [];
  let current = '';
  const flush = async (): Promise<void> => {
    if (current === '') return;
    const content = Buffer.concat(parts);
    await archive.add(`${source.name}/${current}`, content);
    source.filesCount += 1;
    source.bytes += content.length;
    [parts, current] = [[], ''];
  };
  try {
    await collect(async (file, part) => {
      if (file !== current) await flush();
      current = file;
      parts.push(typeof part === 'string' ? Buffer.from(part) : part);
    });
    await flush();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    source.fault = failureLine(error);
    await flush();
    await archive.add(`${source.name}/error.txt`, `${source.fault}\n`);
  }
  return source;
}

/** Codes of parts that the cluster does not have. */
const NOT_CONFIGURED: readonly string[] = ['POLICIES_NOT_SERVED', 'HISTORY_NOT_KEPT'];

/** Objects as manifests and as tables, and the answers that describe the cluster. A part that fails does not end the rest. */
async function addCluster(context: Context, add: Add): Promise<void> {
  const json = new ContractJson();
  const { ipam } = context;
  const failures: Failure[] = [];
  const attempt = async (work: () => Promise<void>): Promise<void> => {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      failures.push(error);
    }
  };
  const answer = <Request, Response>(file: string, method: MethodDefinition<Request, Response>, request: Request) =>
    attempt(async () => add(file, renderData(json.of(method, await ipam.call(method, request)), 'json')));
  const page = { pageSize: 1000, pageToken: '' };
  await answer('info.json', ClusterServiceService.getClusterInfo, {});
  await answer('node-states.json', ClusterServiceService.listNodeStates, page);
  await answer('audit.json', AuditServiceService.audit, {
    ...page,
    kinds: [],
    includeInformation: true,
    topNodes: 100,
  });
  await answer('policy-status.json', NetworkPolicyServiceService.getPolicyStatus, {});
  await answer('policies.json', NetworkPolicyServiceService.listPolicies, { ...page, namespace: '' });
  await attempt(() => addChanges(context, add));
  for (const kind of KINDS) await attempt(() => addKind(kind, context, add));
  const unexpected = failures.find(({ code }) => !NOT_CONFIGURED.includes(code));
  if (unexpected) throw unexpected;
}

async function addChanges({ ipam }: Context, add: Add): Promise<void> {
  const all = { from: undefined, until: undefined, kind: '', nodeName: '' };
  const pages = await allPages((page) => ipam.call(HistoryServiceService.listChanges, { ...all, ...page }));
  const data = new ContractJson().of(HistoryServiceService.listChanges, {
    changes: pages.flatMap(({ changes }) => changes),
    nextPageToken: '',
  });
  await add('changes.json', renderData(data, 'json'));
}

async function addKind(entry: KindEntry, context: Context, add: Add): Promise<void> {
  const resource = await loadResource(entry);
  const { objects } = await resource.list(NO_FILTER, context);
  const manifests = objects.map(({ manifest }) => manifest);
  await add(`${entry.names[1]}.yaml`, renderData(manifestData(manifests, entry), 'yaml'));
}

function sourceTable(sources: readonly Source[]): Table {
  return {
    kind: 'table',
    columns: ['SOURCE', { right: 'FILES' }, { right: 'KIB' }, 'RESULT'],
    rows: sources.map(({ name, filesCount, bytes, fault = 'complete' }) => {
      return [name, String(filesCount), String(Math.ceil(bytes / 1024)), fault];
    }),
    none: '',
  };
}

function dataOf(sources: readonly Source[]): ReturnType<Report['data']> {
  return sources.map(({ name, filesCount, bytes, fault = null }) => ({ name, files: filesCount, bytes, fault }));
}
