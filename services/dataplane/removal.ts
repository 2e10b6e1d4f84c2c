import { rm, stat } from 'node:fs/promises';
import type { Writable } from 'node:stream';

import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { acquireExclusive } from '@podwire/shared/sockets/exclusive';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Config } from './config.js';
import { acceptRuleDeletions } from './filters/forward-path.js';
import { HOST_PORT_TABLE } from './filters/host-ports.js';
import { masqueradeTableName } from './filters/masquerade.js';
import { NEIGHBOUR_TABLE } from './filters/neighbour-guard.js';
import { GUARD_TABLE } from './filters/source-guard.js';
import type { Nft } from './nft/nft.js';
import { formatTableName, removal, type TableName } from './nft/table.js';
import { PORT_TABLE } from './filters/port-guard.js';
import { TUNNEL_TABLE } from './filters/tunnel-guard.js';
import { policyFiles } from './network-policy/policy-store.js';
import { POLICY_TABLE } from './network-policy/rules.js';
import { ProgramNft } from './nft/nft-program.js';
import { NodeNetlinkKernel } from './kernel/node-kernel.js';
import { NodeMonitor } from './kernel/node-monitor.js';
import { NetlinkKernel } from './kernel/pod-kernel.js';
import type { Kernel } from './pods/kernel.js';
import { isOwnDevice } from './routes/diff.js';
import type { NodeKernel } from './routes/kernel.js';
import { NODE_ROUTE_PROTOCOL } from './routes/observed.js';
import { formatNodeStep, type NodeStep } from './routes/step.js';

/** Every nftables table that Podwire creates. */
export const TABLES = [
  GUARD_TABLE,
  HOST_PORT_TABLE,
  NEIGHBOUR_TABLE,
  TUNNEL_TABLE,
  PORT_TABLE,
  POLICY_TABLE,
  masqueradeTableName(4),
  masqueradeTableName(6),
];

/** Table of a running trace of packets, which podwire-node removes at its next start if it was killed. */
export const TRACE_TABLE: TableName = { family: 'inet', name: 'podwire_trace' };

/** Settings of the whole node that Podwire sets and that other programs may rely on by now. */
const KEPT_SETTINGS = 'net.ipv4.ip_forward, net.ipv6.conf.all.forwarding and net.ipv6.conf.*.accept_ra';

/** Exit code of a list of objects that are left, as podwirectl's. */
const NOT_CONFIRMED = 2;

/** The kernel as a removal needs it. */
interface RemovalKernel {
  readonly pods: Pick<Kernel, 'attachedLinks' | 'deleteHostLink' | 'deleteFlows'>;
  readonly node: Pick<NodeKernel, 'observe' | 'apply'>;
  readonly nft: Pick<Nft, 'read' | 'apply'>;
}

/** An object of Podwire on this node. */
interface Leftover {
  /** Text for operators, in the notation of `ip` where there is one. */
  readonly text: string;
  /** Idempotent. @throws Failure, or an error of the file system */
  remove(): Promise<void>;
}

/**
 * Every object of Podwire on this node, in the order of removal: pods' interfaces, routes, tunnel devices, nftables tables, files.
 * Objects of other programs are not included, even with Podwire's names.
 * @param paths - existing files and directories of the dataplane
 * @throws Failure KERNEL_REFUSED or KERNEL_UNSUPPORTED when the kernel cannot be queried
 */
async function findLeftovers(kernel: RemovalKernel, paths: readonly string[]): Promise<readonly Leftover[]> {
  return [
    ...(await podLeftovers(kernel)),
    ...(await nodeLeftovers(kernel)),
    ...(await tableLeftovers(kernel)),
    ...paths.map((path) => ({ text: `rm -r ${path}`, remove: () => rm(path, { recursive: true, force: true }) })),
  ];
}

async function podLeftovers({ pods }: RemovalKernel): Promise<Leftover[]> {
  const attached = await pods.attachedLinks();
  return attached.map(({ attachment, link, addresses }) => ({
    text: `pod interface ${link.name} of ${formatAttachment(attachment)}${addresses.length > 0 ? `, ${addresses.join(', ')}` : ''}`,
    remove: async () => {
      await pods.deleteHostLink(link);
      for (const cidr of addresses) await pods.deleteFlows(cidr.replace(/\/.*$/, ''));
    },
  }));
}

async function nodeLeftovers({ pods, node }: RemovalKernel): Promise<Leftover[]> {
  // Routes of pods vanish with their interface; routes by another interface do not.
  const podLinks = new Set((await pods.attachedLinks()).map(({ link }) => link.name));
  const { devices, routes } = await node.observe({ sysctls: [], isWanted: () => true });
  const routeSteps = routes
    .filter(
      ({ protocol, device }) => protocol === NODE_ROUTE_PROTOCOL && !(device !== undefined && podLinks.has(device)),
    )
    .map((route): NodeStep => ({ type: 'route-delete', route }));
  const deviceSteps = [...devices.values()]
    .filter(isOwnDevice)
    .map(({ name }): NodeStep => ({ type: 'device-delete', name }));
  return [...routeSteps, ...deviceSteps].map((step) => ({
    text: formatNodeStep(step),
    remove: async () => {
      const [refusal] = await node.apply([step]);
      if (refusal && !GONE.includes(refusal.errno)) throw refusal.failure;
    },
  }));
}

/** Errors of a deletion whose object is gone, such as a route whose device was deleted. */
const GONE: readonly string[] = ['ENODEV', 'ESRCH', 'ENOENT'];

async function tableLeftovers({ nft }: RemovalKernel): Promise<Leftover[]> {
  const found: Leftover[] = [];
  for (const table of [...TABLES, TRACE_TABLE]) {
    if ((await nft.read(table)) === undefined) continue;
    found.push({ text: `nft delete table ${formatTableName(table)}`, remove: () => nft.apply(removal(table)) });
  }
  const deletions = await acceptRuleDeletions(nft);
  if (deletions.length > 0) {
    const text = `${deletions.length} rules with the comment podwire in the chain FORWARD of iptables`;
    found.push({ text, remove: () => nft.apply(deletions) });
  }
  return found;
}

async function existing(paths: readonly string[]): Promise<readonly string[]> {
  const found: string[] = [];
  for (const path of paths) {
    try {
      await stat(path);
      found.push(path);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') throw error;
    }
  }
  return found;
}

type RemovalConfig = Pick<Config, 'listen' | 'recordsDirectory' | 'birdConfigFile' | 'routing'>;

/** Dependencies of {@link runRemoval} on its process. */
interface RemovalDeps {
  readonly clock: Clock;
  readonly pid: number;
  readonly stdout: Pick<Writable, 'write'>;
  readonly stderr: Pick<Writable, 'write'>;
}

/**
 * Lists every object of Podwire on this node, and removes them if the operator has agreed. Refused while a dataplane runs.
 * @returns the exit code: 0 nothing is left, 1 failed, 2 objects are left as --yes is missing
 */
export async function runRemoval(readConfig: () => RemovalConfig, agreed: boolean, deps: RemovalDeps): Promise<number> {
  const { clock, pid, stdout, stderr } = deps;
  const opened: { close(): Promise<void> }[] = [];
  try {
    const { listen: addresses, recordsDirectory, birdConfigFile, routing } = readConfig();
    // The lock creates the directory.
    const own = [recordsDirectory, ...policyFiles(recordsDirectory)];
    const paths = await existing(routing === 'bird' ? [...own, birdConfigFile] : own);
    if (!paths.includes(recordsDirectory))
      opened.push({ close: () => rm(recordsDirectory, { recursive: true, force: true }) });
    const running = new AbortController();
    const lock = await acquireExclusive({
      program: 'podwire-node',
      addresses,
      directories: [{ path: recordsDirectory }],
      settings: 'PODWIRE_NODE_LISTEN and PODWIRE_NODE_RECORDS_DIRECTORY',
      owner: String(pid),
      clock,
      signal: running.signal,
      // A dataplane that is about to end would restore the removed objects.
      onWait: () => running.abort(new Failure('INVALID_SETTINGS', 'podwire-node runs on this node; stop it first')),
    });
    opened.push({
      close: () => {
        lock.release();
        return Promise.resolve();
      },
    });
    const pods = await NetlinkKernel.open();
    opened.push(pods);
    const node = await NodeNetlinkKernel.open(new NodeMonitor());
    opened.push(node);
    const leftovers = await findLeftovers({ pods, node, nft: new ProgramNft() }, paths);
    return agreed ? await removeAll(leftovers, deps) : listAll(leftovers, stdout);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    stderr.write(`podwire-node: remove failed: ${error.message} (${error.code})\n`);
    return 1;
  } finally {
    for (const part of opened.toReversed()) await part.close();
  }
}

function listAll(leftovers: readonly Leftover[], stdout: RemovalDeps['stdout']): number {
  if (leftovers.length === 0) {
    stdout.write('nothing of Podwire is on this node\n');
    return 0;
  }
  for (const { text } of leftovers) stdout.write(`${text}\n`);
  stdout.write(
    `${leftovers.length} objects of Podwire; nothing was removed: repeat with --yes; pods of this node then lose their network\n`,
  );
  return NOT_CONFIRMED;
}

async function removeAll(leftovers: readonly Leftover[], { stdout, stderr }: RemovalDeps): Promise<number> {
  let failedCount = 0;
  for (const leftover of leftovers) {
    const { text } = leftover;
    try {
      await leftover.remove();
      stdout.write(`removed: ${text}\n`);
    } catch (error) {
      failedCount++;
      stderr.write(`podwire-node: ${text}: ${messageOf(error)}\n`);
    }
  }
  stdout.write(
    `removed ${leftovers.length - failedCount} of ${leftovers.length} objects; unchanged: ${KEPT_SETTINGS}\n`,
  );
  return failedCount === 0 ? 0 : 1;
}
