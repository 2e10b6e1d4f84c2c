import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { openNamespace, type Namespace } from '@podwire/netlink';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf } from '@podwire/shared/failure/thrown';
import type { DiagnosticFile } from '@podwire/shared/common-services/diagnostics-service';

export interface NodeFilesOptions {
  /** Attachment records. */
  readonly recordsDirectory: string;
  /** The journal, the leases and what else outlives a restart. */
  readonly stateDirectory: string;
  /** Rules of all tables of nftables, as `nft list ruleset` prints them. */
  readonly ruleset: () => Promise<string>;
  /** The status that the dataplane reports. */
  readonly status: () => object;
  /** The recent commands of the container runtime, as JSON. */
  readonly commands: () => Promise<string>;
}

/** A longer list of the kernel is an error: its file would be hundreds of megabytes. */
const BOUNDS = { maxCount: 200_000, timeoutMs: 10_000 };

/** Files of /proc that show what the kernel dropped. */
const COUNTERS = [
  'net/snmp',
  'net/snmp6',
  'net/netstat',
  'net/softnet_stat',
  'net/sockstat',
  'loadavg',
  'uptime',
  'version',
];

const SYSCTLS = [
  'ipv4/ip_forward',
  'ipv4/conf/all/rp_filter',
  'ipv6/conf/all/forwarding',
  'netfilter/nf_conntrack_count',
  'netfilter/nf_conntrack_max',
];

/** The state of this node as kernel and disk have it, with the names that `calicoctl cluster diags` gives to such files. */
export async function nodeFiles(options: NodeFilesOptions): Promise<DiagnosticFile[]> {
  const { recordsDirectory, stateDirectory, ruleset, status, commands } = options;
  const kernel = (list: (node: Namespace) => Promise<object>): DiagnosticFile['content'] => inOwnNamespace(list);
  return [
    { name: 'node-status.json', content: status },
    { name: 'commands.json', content: commands },
    { name: 'ip-link.json', content: kernel((node) => node.links(BOUNDS)) },
    { name: 'ip-addr.json', content: kernel((node) => node.addresses(BOUNDS)) },
    { name: 'ip-route.json', content: kernel((node) => node.routes(BOUNDS)) },
    { name: 'ip-rule.json', content: kernel((node) => node.rules(BOUNDS)) },
    { name: 'ip-neigh.json', content: kernel((node) => node.neighbours(BOUNDS)) },
    { name: 'bridge-fdb.json', content: kernel((node) => node.fdbEntries(BOUNDS)) },
    { name: 'nft-ruleset.txt', content: ruleset },
    { name: 'proc.txt', content: procText },
    ...(await filesBelow('records', recordsDirectory)),
    ...(await filesBelow('state', stateDirectory)),
  ];
}

function inOwnNamespace(list: (node: Namespace) => Promise<object>): () => Promise<object> {
  return async () => {
    const node = await openNamespace();
    try {
      return await list(node);
    } finally {
      await node.close();
    }
  };
}

async function procText(): Promise<string> {
  const paths = [...COUNTERS.map((name) => `/proc/${name}`), ...SYSCTLS.map((name) => `/proc/sys/net/${name}`)];
  const texts = await Promise.all(
    paths.map(async (path) => `== ${path}\n${await readFile(path, 'utf8').catch(() => 'missing\n')}`),
  );
  return texts.join('\n');
}

/** Plain files of a directory, each with the directory's name before its own. */
async function filesBelow(name: string, directory: string): Promise<DiagnosticFile[]> {
  try {
    const entries = await readdir(directory, { withFileTypes: true });
    return entries
      .filter((entry) => entry.isFile())
      .map((entry) => ({
        name: `${name}/${entry.name}`,
        content: () => readFile(join(directory, entry.name), 'utf8'),
      }));
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return [];
    const content = (): never => {
      throw new Failure('STATE_IO', `${directory}: ${String(error)}`, { cause: error });
    };
    return [{ name: `${name}.txt`, content }];
  }
}
