import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Events } from './events.js';
import type { PodGuard } from './kernel.js';
import { Dataplane } from './pods.js';

const never = () => new AbortController().signal;

function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(text);
  return parsed.prefix;
}

/** A guard that records its calls, with the links that existed at that moment. */
class RecordingGuard implements PodGuard {
  readonly notes: string[] = [];
  refusal: Failure | undefined;
  readonly #links: () => number;

  constructor(links: () => number) {
    this.#links = links;
  }

  ready(): Promise<void> {
    return this.#note('ready');
  }

  setSourcePrefixes(device: string, allowed: readonly Prefix[]): Promise<void> {
    return this.#note(`allow ${device} ${allowed.map(formatPrefix).join(' ')}`.trim());
  }

  forget(device: string): Promise<void> {
    return this.#note(`forget ${device}`);
  }

  #note(what: string): Promise<void> {
    this.notes.push(`${what} (${this.#links()} links)`);
    return this.refusal && !what.startsWith('forget') ? Promise.reject(this.refusal) : Promise.resolve();
  }
}

function guardedNode() {
  const kernel = new MemoryKernel();
  const guard = new RecordingGuard(() => kernel.host.links.length);
  const { log } = recordingLog();
  const dataplane = new Dataplane({ kernel, registry: testRegistry(), events: new Events(log), guard });
  const pod = (name: string, rest: Partial<PodNetwork> = {}): PodNetwork => {
    const network = podNetwork(name, rest);
    kernel.addNamespace(network.netns);
    return network;
  };
  const bare = kernel.host.links.length;
  return { kernel, guard, dataplane, pod, bare };
}

test('a pod is guarded before its interface exists, and until it is deleted', async () => {
  const { guard, dataplane, pod, bare } = guardedNode();
  const network = pod('a', { ...BY_FAMILY['both families'], sourcePrefixes: [prefix('10.99.0.0/24')] });
  const name = network.hostInterfaceName;
  await dataplane.attach(network, never());
  await dataplane.detach(network, never());
  expect(guard.notes).toEqual([
    `ready (${bare} links)`,
    `allow ${name} 10.99.0.0/24 (${bare} links)`,
    `forget ${name} (${bare} links)`,
  ]);
});

test('the guard of a pod whose wire vanished with its namespace is removed too', async () => {
  const { kernel, guard, dataplane, pod, bare } = guardedNode();
  const network = pod('a', { sourcePrefixes: [prefix('10.99.0.0/24')] });
  await dataplane.attach(network, never());
  kernel.removeNamespace(network.netns);
  expect(await dataplane.detach(network, never())).toBe(false);
  expect(guard.notes.at(-1)).toBe(`forget ${network.hostInterfaceName} (${bare} links)`);
});

test('a pod that cannot be guarded is not wired, and leaves nothing', async () => {
  const { kernel, guard, dataplane, pod, bare } = guardedNode();
  guard.refusal = new Failure('KERNEL_UNSUPPORTED', 'nft: not installed');
  const network = pod('a', BY_FAMILY['both families']);
  const before = kernel.print();
  await expect(dataplane.attach(network, never())).rejects.toBe(guard.refusal);
  expect(kernel.print()).toBe(before);
  expect(guard.notes).toEqual([`ready (${bare} links)`, `forget ${network.hostInterfaceName} (${bare} links)`]);
});

test('a pod whose new wiring failed keeps its allowed prefixes', async () => {
  const { kernel, guard, dataplane, pod } = guardedNode();
  const first = pod('a', { sourcePrefixes: [prefix('10.99.0.0/24')] });
  await dataplane.attach(first, never());
  kernel.failNext('any step', { errno: 'EIO' });
  const second = { ...first, sourcePrefixes: [prefix('10.98.0.0/24')] };
  await expect(dataplane.attach(second, never())).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
  expect(guard.notes.map((note) => note.split(' ')[2])).toEqual(['10.99.0.0/24', '10.98.0.0/24', '10.99.0.0/24']);
});

/** Calico's names are the same for each sandbox of a pod. */
const SANDBOX = { hostInterfaceName: 'cali0123456789a', addresses: BY_FAMILY.IPv6.addresses, routes: [] };

/** The guarded interfaces, each with its allowed prefixes, derived from the guard's calls. */
function guarded(notes: readonly string[]): Record<string, string> {
  const allowed = new Map<string, string>();
  for (const [what = '', name = '', ...prefixes] of notes.map((note) => note.replace(/ \(.*/, '').split(' '))) {
    if (what === 'allow') allowed.set(name, prefixes.join(' '));
    if (what === 'forget') allowed.delete(name);
  }
  return Object.fromEntries(allowed);
}

test('a sandbox stays guarded when the earlier one of its name, whose wire vanished with its namespace, is detached late', async () => {
  const { kernel, guard, dataplane, pod } = guardedNode();
  const [first, second] = [pod('first', SANDBOX), pod('second', { ...SANDBOX, sourcePrefixes: [prefix('fd99::/64')] })];
  await dataplane.attach(first, never());
  kernel.removeNamespace(first.netns);
  await dataplane.attach(second, never());
  await dataplane.detach({ attachment: first.attachment, hostInterfaceName: 'podw0123456789a' }, never());
  expect(guarded(guard.notes)).toEqual({ [SANDBOX.hostInterfaceName]: 'fd99::/64' });
  await dataplane.detach(second, never());
  expect(guarded(guard.notes)).toEqual({});
});

test('a pod keeps its guard when another one requests its interface, and is refused', async () => {
  const { guard, dataplane, pod } = guardedNode();
  const first = pod('first', { ...SANDBOX, sourcePrefixes: [prefix('fd99::/64')] });
  await dataplane.attach(first, never());
  await expect(dataplane.attach(pod('second', SANDBOX), never())).rejects.toMatchObject({
    code: 'HOST_INTERFACE_TAKEN',
  });
  expect(guarded(guard.notes)).toEqual({ [SANDBOX.hostInterfaceName]: 'fd99::/64' });
});
