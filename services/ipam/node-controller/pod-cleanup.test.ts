import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { formatAddress } from '@podwire/shared/net/address';
import { beforeEach, describe, expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import { checkPool } from '../pools/rules.js';
import { assignment } from '../testing/allocations.js';
import { startIpam, type StartedIpam } from '../testing/ipam.js';
import { foreignRecord, host, NOW_MS, request } from '../testing/records.js';
import { ControllerEvents } from './controller-events.js';
import { PodCleanup, type PodCleanupOptions } from './pod-cleanup.js';

const GRACE_MS = 900_000;
const SWEEP_MS = GRACE_MS / 2;
const UID = '0a1b2c3d-0000-4000-8000-00000000000f';

class FakeCluster {
  readonly pods = new Set<string>();
  readonly serving = new Set(['n1', 'n2']);
  isCurrent = true;
  /** Whether lists have the pods of podwire-node; undefined while the API server does not answer. */
  isTrusted: boolean | undefined = true;
  listsCount = 0;
  /** Called in the middle of a list. */
  listing: () => void = () => undefined;

  servingNodes(): ReadonlySet<string> {
    return new Set(this.serving);
  }

  removeExisting(missing: Set<string>): Promise<boolean | undefined> {
    this.listsCount++;
    for (const key of this.pods) missing.delete(key);
    this.listing();
    return Promise.resolve(this.isTrusted);
  }
}

let started: StartedIpam;
let store: MemoryStore;
let cluster: FakeCluster;
let clock: ManualClock;
let cleanup: PodCleanup;

beforeEach(async () => {
  store = new MemoryStore();
  started = await startIpam(store);
  cluster = new FakeCluster();
  clock = new ManualClock();
  cleanup = makeCleanup();
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/24', blockSizeBits: 26, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await started.ipam.pools.create(checked.spec, forever);
});

function makeCleanup(rest: Partial<PodCleanupOptions> = {}): PodCleanup {
  const { ipam, events } = started;
  return new PodCleanup({
    cluster: () => cluster,
    addresses: ipam.addresses,
    listEndpoints: (query, signal) => ipam.endpoints.list(query, signal),
    events: new ControllerEvents(events),
    clock,
    graceMs: GRACE_MS,
    ...rest,
  });
}

interface Added {
  readonly containerId?: string;
  readonly nodeName?: string;
  readonly uid?: string;
}

/** A pod with an address, which Kubernetes has too. */
async function add(name: string, { containerId = name, nodeName = 'n1', uid = UID }: Added = {}): Promise<string> {
  const pod = { namespace: 'default', name, uid };
  const { endpoint } = await started.ipam.addresses.allocate(request(containerId, { nodeName, pod }), forever);
  cluster.pods.add(`default/${name}`);
  return formatAddress(endpoint.addresses[0]!.address);
}

const remove = (name: string): boolean => cluster.pods.delete(`default/${name}`);

/** Sweeps until so much time has passed, with several rounds each. */
async function sweeps(totalMs: number): Promise<void> {
  for (let passedMs = 0; passedMs < totalMs; passedMs += SWEEP_MS / 3) {
    await cleanup.run(forever);
    clock.advance(SWEEP_MS / 3);
  }
}

/** The pods that hold addresses. */
async function holders(): Promise<string[]> {
  const { items } = await started.ipam.endpoints.list(
    { nodeName: '', namespace: '', podName: '', poolName: '', after: '', limit: 100 },
    forever,
  );
  return items.flatMap(({ kind, value }) => (kind === 'endpoint' ? [value.attachment.containerId] : [])).sort();
}

const lines = (): string[] => started.lines.map((line) => JSON.parse(line).msg);
const count = (text: string): number => lines().filter((line) => line.includes(text)).length;

test('leased addresses stay, although no pod has them', async () => {
  const leased = { owner: host('n1'), attributes: { type: 'podwireLease', 'boot-id': 'b' } };
  await started.ipam.assignments.assign(assignment('podwire-lease.n1', leased), forever);
  await add('gone');
  remove('gone');
  await sweeps(2 * GRACE_MS);
  expect(await holders()).toEqual([]);
  const query = { handleId: 'podwire-lease.n1', after: undefined, limit: 10 };
  expect((await started.ipam.handles.addresses(query, forever)).items).toHaveLength(1);
});

describe('the address of a pod that was deleted', () => {
  test('is released after the grace period, and no other', async () => {
    const [gone] = [await add('gone'), await add('here')];
    await sweeps(SWEEP_MS);
    remove('gone');
    await sweeps(GRACE_MS);
    expect(await holders()).toEqual(['gone', 'here']);
    await sweeps(SWEEP_MS);
    expect(await holders()).toEqual(['here']);
    expect(lines()).toContain(`pod default/gone was deleted from Kubernetes: released ${gone} on node n1`);
    expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
    await sweeps(GRACE_MS);
    expect(count('was deleted from Kubernetes')).toBe(1);
  });

  test('costs one list of pods in half a grace period, and none without a pod that could be released', async () => {
    await add('static', { uid: '' });
    await sweeps(4 * SWEEP_MS);
    expect(cluster.listsCount).toBe(0);
    await add('here');
    await sweeps(4 * SWEEP_MS);
    expect(cluster.listsCount).toBe(4);
  });

  test('is kept if a pod of the name is there again, and its time begins again', async () => {
    await add('web-0');
    await sweeps(SWEEP_MS);
    remove('web-0');
    await sweeps(GRACE_MS);
    cluster.pods.add('default/web-0');
    await sweeps(SWEEP_MS);
    remove('web-0');
    await sweeps(GRACE_MS);
    expect(await holders()).toEqual(['web-0']);
    await sweeps(SWEEP_MS);
    expect(await holders()).toEqual([]);
  });

  test('is kept if the attachment has got another allocation', async () => {
    await add('gone');
    await sweeps(SWEEP_MS);
    remove('gone');
    await sweeps(GRACE_MS);
    const attachment = { network: 'net', containerId: 'gone', interfaceName: 'eth0' };
    await started.ipam.addresses.release(attachment, forever);
    await add('gone');
    remove('gone');
    await sweeps(GRACE_MS);
    expect(await holders()).toEqual(['gone']);
  });

  test('is kept if the allocation changes between the list and the release', async () => {
    await add('gone');
    remove('gone');
    const attachment = { network: 'net', containerId: 'gone', interfaceName: 'eth0' };
    cleanup = makeCleanup({
      addresses: {
        releaseEach: async (releases, signal) => {
          await started.ipam.addresses.release(attachment, forever);
          await add('gone');
          return started.ipam.addresses.releaseEach(releases, signal);
        },
      },
    });
    await sweeps(3 * SWEEP_MS);
    expect(await holders()).toEqual(['gone']);
    expect(count('was deleted from Kubernetes')).toBe(0);
  });

  test.each([
    ['cannot run pods', () => cluster.serving.delete('n1')],
    ['could not run pods for a moment in each half of the grace period', () => cleanup.nodeInterrupted('n1')],
    ['is not observed', () => void (cluster.isCurrent = false)],
    ['was not observed for a moment', () => cleanup.interrupted()],
    ['is in a list that lacks Podwire’s own pods', () => void (cluster.isTrusted = false)],
    ['is in no list', () => void (cluster.isTrusted = undefined)],
  ])('is kept while its node %s', async (_, disturb) => {
    await add('gone');
    await sweeps(SWEEP_MS);
    remove('gone');
    for (let sweep = 0; sweep < 6; sweep++) {
      disturb();
      await sweeps(SWEEP_MS);
    }
    expect(await holders()).toEqual(['gone']);
  });

  test('is kept for another grace period after an interruption', async () => {
    await add('gone');
    await sweeps(SWEEP_MS);
    remove('gone');
    await sweeps(GRACE_MS);
    cleanup.interrupted();
    await sweeps(GRACE_MS);
    expect(await holders()).toEqual(['gone']);
    await sweeps(SWEEP_MS);
    expect(await holders()).toEqual([]);
  });

  test('is kept if its node stops serving during the last list', async () => {
    await add('gone');
    await sweeps(SWEEP_MS);
    remove('gone');
    await sweeps(GRACE_MS);
    cluster.listing = () => cleanup.nodeInterrupted('n1');
    await sweeps(SWEEP_MS);
    expect(await holders()).toEqual(['gone']);
  });

  test('is kept if the pod is static: the API server may lack its mirror', async () => {
    await add('static', { uid: '0a1b2c3d00004000800000000000000f' });
    await add('unknown', { uid: '' });
    remove('static');
    remove('unknown');
    await sweeps(4 * SWEEP_MS);
    expect(await holders()).toEqual(['static', 'unknown']);
  });

  test('is released together with addresses of the pod’s earlier containers', async () => {
    await add('web-0', { containerId: 'first' });
    await add('web-0', { containerId: 'second' });
    remove('web-0');
    await sweeps(GRACE_MS + SWEEP_MS);
    expect(await holders()).toEqual([]);
    expect(count('was deleted from Kubernetes')).toBe(2);
    expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
  });

  test('is released on each node that the pod ran on', async () => {
    await add('moved', { containerId: 'first', nodeName: 'n1' });
    await add('moved', { containerId: 'second', nodeName: 'n2' });
    remove('moved');
    cluster.serving.delete('n2');
    await sweeps(GRACE_MS + SWEEP_MS);
    expect(await holders()).toEqual(['second']);
  });

  test('is tried again after a failure, which does not hold up the next', async () => {
    await add('a');
    await add('b');
    remove('a');
    remove('b');
    let isFailing = true;
    cleanup = makeCleanup({
      addresses: {
        releaseEach: (releases, signal) =>
          isFailing && releases[0]!.handleId === 'net.a'
            ? Promise.reject(new Failure('STORE_UNAVAILABLE', 'etcd is down'))
            : started.ipam.addresses.releaseEach(releases, signal),
      },
    });
    await sweeps(GRACE_MS + SWEEP_MS);
    expect(await holders()).toEqual(['a']);
    expect(count('failed to release the addresses of the deleted pod default/a')).toBe(1);
    isFailing = false;
    await sweeps(SWEEP_MS);
    expect(await holders()).toEqual([]);
  });
});

test('endpoints of other writers are left to them', async () => {
  const foreign = foreignRecord('n1-k8s-web--0-eth0', { podName: 'web-0' });
  cleanup = makeCleanup({
    listEndpoints: () =>
      Promise.resolve({
        items: foreign.kind === 'foreignEndpoint' ? [{ ...foreign, kind: 'foreignEndpoint', addresses: [] }] : [],
        next: '',
      }),
  });
  await sweeps(3 * SWEEP_MS);
  expect(cluster.listsCount).toBe(0);
});
