import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { BY_FAMILY, hostPort, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import type { Difference, PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Events } from './events.js';
import type { PodFilter } from './kernel.js';
import { PodWiring } from './pods.js';

const never = () => new AbortController().signal;

function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(text);
  return parsed.prefix;
}

/** A filter that notes its calls, with the links that existed at that moment. */
class RecordingFilter implements PodFilter {
  readonly notes: string[] = [];
  refusal: Failure | undefined;
  readonly #links: () => number;

  constructor(links: () => number) {
    this.#links = links;
  }

  install({ hostInterfaceName, sourcePrefixes }: PodNetwork): Promise<void> {
    return this.#note(`install ${hostInterfaceName} ${sourcePrefixes.map(formatPrefix).join(' ')}`.trim());
  }

  differences({ hostPorts }: PodNetwork): Promise<readonly Difference[]> {
    return Promise.resolve(hostPorts.map(({ hostPort }) => ({ object: `port ${hostPort}`, wanted: '1', actual: '0' })));
  }

  forget(hostInterfaceName: string): Promise<void> {
    return this.#note(`forget ${hostInterfaceName}`);
  }

  #note(what: string): Promise<void> {
    this.notes.push(`${what} (${this.#links()} links)`);
    return this.refusal ? Promise.reject(this.refusal) : Promise.resolve();
  }
}

function filteredNode() {
  const kernel = new MemoryKernel();
  const filter = new RecordingFilter(() => kernel.host.links.length);
  const { log } = recordingLog();
  const dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(log), filters: [filter] });
  const pod = (name: string, rest: Partial<PodNetwork> = {}): PodNetwork => {
    const network = podNetwork(name, rest);
    kernel.addNamespace(network.netns);
    return network;
  };
  const bare = kernel.host.links.length;
  return { kernel, filter, dataplane, pod, bare };
}

test('a pod is filtered before its interface exists, and until it is deleted', async () => {
  const { filter, dataplane, pod, bare } = filteredNode();
  const network = pod('a', { ...BY_FAMILY['both families'], sourcePrefixes: [prefix('10.99.0.0/24')] });
  const name = network.hostInterfaceName;
  await dataplane.attach(network, never());
  await dataplane.detach(network, never());
  expect(filter.notes).toEqual([`install ${name} 10.99.0.0/24 (${bare} links)`, `forget ${name} (${bare} links)`]);
});

test('the filter of a pod whose wire vanished with its namespace is removed too', async () => {
  const { kernel, filter, dataplane, pod, bare } = filteredNode();
  const network = pod('a', { sourcePrefixes: [prefix('10.99.0.0/24')] });
  await dataplane.attach(network, never());
  kernel.removeNamespace(network.netns);
  expect(await dataplane.detach(network, never())).toBe(false);
  expect(filter.notes.at(-1)).toBe(`forget ${network.hostInterfaceName} (${bare} links)`);
});

test('a pod that cannot be filtered is not wired, and leaves nothing', async () => {
  const { kernel, filter, dataplane, pod, bare } = filteredNode();
  filter.refusal = new Failure('KERNEL_UNSUPPORTED', 'nft: not installed');
  const network = pod('a', BY_FAMILY['both families']);
  const name = network.hostInterfaceName;
  const before = kernel.print();
  await expect(dataplane.attach(network, never())).rejects.toBe(filter.refusal);
  expect(kernel.print()).toBe(before);
  expect(filter.notes).toEqual([`install ${name} (${bare} links)`, `forget ${name} (${bare} links)`]);
});

test('a pod whose new wiring failed keeps its allowed prefixes', async () => {
  const { kernel, filter, dataplane, pod } = filteredNode();
  const first = pod('a', { sourcePrefixes: [prefix('10.99.0.0/24')] });
  await dataplane.attach(first, never());
  kernel.failNext('any step', { errno: 'EIO' });
  const second = { ...first, sourcePrefixes: [prefix('10.98.0.0/24')] };
  await expect(dataplane.attach(second, never())).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
  expect(filter.notes.map((note) => note.split(' ')[2])).toEqual(['10.99.0.0/24', '10.98.0.0/24', '10.99.0.0/24']);
});

test('filters are installed in their order, and a failure of one leaves no interface and no filter behind', async () => {
  const { kernel, pod } = filteredNode();
  const calls: string[] = [];
  const named = (name: string, failure?: Failure): PodFilter => ({
    install: () => (calls.push(`${name} install`), failure ? Promise.reject(failure) : Promise.resolve()),
    forget: () => (calls.push(`${name} forget`), failure ? Promise.reject(failure) : Promise.resolve()),
  });
  const refusal = new Failure('KERNEL_REFUSED', 'nft: busy');
  const filters = [named('first'), named('second', refusal), named('third')];
  const dataplane = new PodWiring({
    kernel,
    registry: testRegistry(),
    events: new Events(recordingLog().log),
    filters,
  });
  const network = pod('a');
  const before = kernel.print();
  await expect(dataplane.attach(network, never())).rejects.toBe(refusal);
  expect(kernel.print()).toBe(before);
  expect(calls).toEqual(['first install', 'second install', 'first forget', 'second forget', 'third forget']);
});

/** Calico's names are the same for each sandbox of a pod. */
const SANDBOX = { hostInterfaceName: 'cali0123456789a', addresses: BY_FAMILY.IPv6.addresses, routes: [] };

/** The filtered interfaces, each with its allowed prefixes, derived from the filter's calls. */
function filtered(notes: readonly string[]): Record<string, string> {
  const allowed = new Map<string, string>();
  for (const [what = '', name = '', ...prefixes] of notes.map((note) => note.replace(/ \(.*/, '').split(' '))) {
    if (what === 'install') allowed.set(name, prefixes.join(' '));
    if (what === 'forget') allowed.delete(name);
  }
  return Object.fromEntries(allowed);
}

test('a sandbox stays filtered when the earlier one of its name, whose wire vanished with its namespace, is detached late', async () => {
  const { kernel, filter, dataplane, pod } = filteredNode();
  const [first, second] = [pod('first', SANDBOX), pod('second', { ...SANDBOX, sourcePrefixes: [prefix('fd99::/64')] })];
  await dataplane.attach(first, never());
  kernel.removeNamespace(first.netns);
  await dataplane.attach(second, never());
  await dataplane.detach({ attachment: first.attachment, hostInterfaceName: 'podw0123456789a' }, never());
  expect(filtered(filter.notes)).toEqual({ [SANDBOX.hostInterfaceName]: 'fd99::/64' });
  await dataplane.detach(second, never());
  expect(filtered(filter.notes)).toEqual({});
});

test('a pod keeps its filter when another one requests its interface, and is refused', async () => {
  const { filter, dataplane, pod } = filteredNode();
  const first = pod('first', { ...SANDBOX, sourcePrefixes: [prefix('fd99::/64')] });
  await dataplane.attach(first, never());
  await expect(dataplane.attach(pod('second', SANDBOX), never())).rejects.toMatchObject({
    code: 'HOST_INTERFACE_TAKEN',
  });
  expect(filtered(filter.notes)).toEqual({ [SANDBOX.hostInterfaceName]: 'fd99::/64' });
});

test('a check reports what differs in the filters, after what differs in the wire', async () => {
  const { kernel, dataplane, pod } = filteredNode();
  const network = pod('a', { hostPorts: [hostPort(8080)] });
  await dataplane.attach(network, never());
  const inFilter = { object: 'port 8080', wanted: '1', actual: '0' };
  expect(await dataplane.check(network, never())).toEqual([inFilter]);
  kernel.host.routes.splice(0);
  expect(await dataplane.check(network, never())).toEqual([expect.anything(), inFilter]);
});
