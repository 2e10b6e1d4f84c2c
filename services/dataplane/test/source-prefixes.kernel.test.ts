import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { SourceGuard } from '../filters/source-guard.js';
import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { arrivalsFrom, inside } from '../testing/contracts/nft-contract.js';
import { reconcilerOptions, prefix, kernelNft } from '../testing/nft.js';
import { address, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';

/** The allowed sources of pods as the dataplane wires them: the settings of their interfaces and the guard together. */

const NODE = '198.18.0.1';
const OWN = '10.65.0.7';
const OTHER_POD = '10.65.0.8';
/** Behind the pod; the node has only its default route to it. */
const BEHIND = '10.99.0.1';
const ELSEWHERE = '10.98.0.1';

let kernel: NetlinkKernel;
let guard: SourceGuard;

const never = () => new AbortController().signal;

beforeEach(async () => {
  requireThrowawayNamespace();
  run('ip', 'address', 'replace', `${NODE}/32`, 'dev', 'lo');
  run('ip', 'link', 'add', 'dev', 'uplink', 'type', 'veth', 'peer', 'name', 'router');
  for (const end of ['uplink', 'router']) run('ip', 'link', 'set', end, 'up');
  run('ip', 'address', 'add', '192.0.2.1/24', 'dev', 'uplink');
  run('ip', 'route', 'add', 'default', 'via', '192.0.2.254');
  kernel = await NetlinkKernel.open();
  guard = new SourceGuard(reconcilerOptions(kernelNft()).options);
});

afterEach(async () => {
  await guard.stop();
  await kernel.close();
  allInterfaces('0');
  // Its far end is deleted with it.
  run('ip', 'link', 'delete', 'uplink');
  run('ip', 'address', 'delete', `${NODE}/32`, 'dev', 'lo');
  cleanUp();
});

function allInterfaces(value: string): void {
  run('sysctl', '-qw', `net.ipv4.conf.all.rp_filter=${value}`);
}

/** A pod that has, besides its address, foreign ones and those behind it; another pod beside it. */
async function wire(sourcePrefixes: readonly string[], by?: SourceGuard): Promise<void> {
  const events = new Events(recordingLog().log);
  const dataplane = new PodWiring({ kernel, registry: testRegistry(), events, filters: by ? [by] : [] });
  for (const [name, own, prefixes] of [['a', OWN, sourcePrefixes] as const, ['b', OTHER_POD, []] as const]) {
    addPod(name);
    const network = podNetwork(name, { addresses: [address(own)], sourcePrefixes: prefixes.map(prefix) });
    await dataplane.attach(network, never());
  }
  for (const more of [OTHER_POD, BEHIND, ELSEWHERE]) inside('a', 'ip', 'address', 'add', `${more}/32`, 'dev', 'eth0');
}

const arrivals = () => [OWN, OTHER_POD, BEHIND, ELSEWHERE].map((from) => arrivalsFrom('a', from, NODE));

test('a pod sends from its address and its allowed prefixes, and from nothing else', async () => {
  await guard.start(new Map());
  await wire(['10.99.0.0/24'], guard);
  expect(arrivals()).toEqual([1, 0, 1, 0]);
});

describe.each(['1', '2'])('net.ipv4.conf.all.rp_filter of %s', (value) => {
  test('blocks a pod’s additional prefixes, which is a condition', async () => {
    await guard.start(new Map());
    await wire(['10.99.0.0/24'], guard);
    allInterfaces(value);
    expect(arrivals()).toEqual([1, 0, 0, 0]);
  });

  test('allows nothing more, also without the guard', async () => {
    await wire([]);
    allInterfaces(value);
    expect(arrivals()).toEqual([1, 0, 0, 0]);
  });
});
