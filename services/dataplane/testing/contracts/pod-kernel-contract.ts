import { describe, expect, test } from 'vitest';

import { diff } from '../../wiring/diff.js';
import { wantedState } from '../../wiring/network.js';
import type { Step } from '../../wiring/step.js';
import { emptyObservation } from '../../wiring/wire.js';
import { KernelUnderTest, type KernelFixture } from '../kernels.js';
import { podNetwork } from '../pods.js';

const HOST = 'podwcontract';
const network = podNetwork('contract', { hostInterfaceName: HOST });
const wanted = wantedState(network);
const fresh = diff(wanted, emptyObservation());
const [linkAdd] = fresh;

/** The contract of every kernel for the node as a whole; pods' sessions are in `pod-session-contract.ts`. */
export function kernelContract(setUp: () => Promise<KernelFixture>): void {
  const under = new KernelUnderTest(setUp);
  const applyAll = (steps: readonly Step[]) => under.applyAll(steps);

  const observed = () => under.session.observe(wanted);

  describe('probe', () => {
    test('succeeds, changes nothing, and can be repeated', async () => {
      await under.fixture.kernel.probe();
      await under.fixture.kernel.probe();
      expect(await under.fixture.kernel.hostLink('podwprobe')).toBeUndefined();
    });
  });

  describe('open', () => {
    test.each<readonly [string, () => string, RegExp]>([
      ['nothing at the path', () => '/run/netns/nowhere', /does not exist/],
      ['a path through a file', () => `${under.fixture.filePath}/x`, /does not exist/],
      ['a file', () => under.fixture.filePath, /is not a network namespace/],
      ['the node’s own namespace', () => under.fixture.nodePath, /node’s own/],
    ])('refuses %s', async (_, path, message) => {
      await expect(under.fixture.kernel.open(path())).rejects.toMatchObject({
        code: 'INVALID_NETNS',
        message: expect.stringMatching(message),
        violations: [{ field: 'pod.netns' }],
      });
    });
  });

  describe('the identity of a namespace', () => {
    test('is stable, and unique to it', async () => {
      const other = under.fixture.addPod('other');
      const identity = await under.fixture.kernel.identify(network.netns);
      expect(identity).toEqual(under.session.identity);
      expect(await under.fixture.kernel.identify(other)).not.toEqual(identity);
      expect(await under.fixture.kernel.identify(under.fixture.nodePath)).not.toEqual(identity);
    });

    test('changes when the namespace is replaced, even with the same inode', async () => {
      const identities = [];
      for (let round = 0; round < 5; round++) {
        identities.push(await under.fixture.kernel.identify(under.fixture.addPod('again')));
        under.fixture.removePod('again');
      }
      expect(new Set(identities.map((each) => each?.cookie)).size).toBe(5);
    });

    test('is undefined when there is no network namespace', async () => {
      expect(await under.fixture.kernel.identify('/run/netns/nowhere')).toBeUndefined();
      expect(await under.fixture.kernel.identify(under.fixture.filePath)).toBeUndefined();
    });
  });

  describe('host links', () => {
    test('are found by name', async () => {
      expect(await under.fixture.kernel.hostLink(HOST)).toBeUndefined();
      await applyAll(fresh);
      expect(await under.fixture.kernel.hostLink(HOST)).toMatchObject({
        name: HOST,
        kind: 'veth',
        alias: 'podwire:net/contract/eth0',
      });
    });

    test('are deleted with their peers; a second time there is nothing to delete', async () => {
      await applyAll(fresh);
      const link = (await under.fixture.kernel.hostLink(HOST))!;
      expect(await under.fixture.kernel.deleteHostLink(link)).toBe(true);
      const { host, pod } = await observed();
      expect([host.link, host.routes, pod.link]).toEqual([undefined, [], undefined]);
      expect(await under.fixture.kernel.deleteHostLink(link)).toBe(false);
    });

    test('are renamed with everything on them, but not to a used name', async () => {
      const { kernel } = under.fixture;
      await applyAll(fresh);
      const before = await observed();
      const link = (await kernel.hostLink(HOST))!;
      await kernel.renameHostLink(link, 'podwrenamed');
      expect(await kernel.hostLink(HOST)).toBeUndefined();
      const renamed = (await kernel.hostLink('podwrenamed'))!;
      expect(renamed).toEqual({ ...link, name: 'podwrenamed' });
      await kernel.renameHostLink(renamed, HOST);
      await kernel.renameHostLink(link, HOST);
      expect(await observed()).toEqual(before);
      under.fixture.addBridge('podwbridge', {});
      await expect(kernel.renameHostLink(link, 'podwbridge')).rejects.toMatchObject({ details: { errno: 'EEXIST' } });
      await kernel.deleteHostLink(link);
      await expect(kernel.renameHostLink(link, 'podwrenamed')).rejects.toMatchObject({
        code: 'KERNEL_REFUSED',
        details: { errno: 'ENODEV' },
      });
    });

    test('of kind veth are listed, including foreign ones, and no other kinds', async () => {
      await applyAll([linkAdd!]);
      under.fixture.addBridge('podwbridge', {});
      const bare = await under.fixture.kernel.hostLink(HOST);
      expect(await under.fixture.kernel.veths()).toEqual([bare]);
      expect(bare).toMatchObject({ alias: null, up: false, mac: 'ee:ee:ee:ee:ee:ee', peerIndex: 2 });
    });

    test('that record attachments are listed by name, with their addresses, and no other links', async () => {
      await applyAll(fresh);
      under.fixture.addBridge('a-bridge', { alias: 'podwire:net/other/eth0' });
      under.fixture.addBridge('br-foreign', { alias: 'podwire:no-attachment' });
      const all = await under.fixture.kernel.attachedLinks();
      expect(all.map(({ link, attachment, addresses }) => [link.name, attachment.containerId, addresses])).toEqual([
        ['a-bridge', 'other', []],
        [HOST, 'contract', ['10.65.0.7/32']],
      ]);
    });
  });

  test('flows of an address are forgotten, in both directions and families, and no other flows', async () => {
    for (const [source, destination] of [
      ['10.65.0.7', '10.65.0.8'],
      ['10.65.0.8', '10.65.0.7'],
      ['10.65.0.8', '10.65.0.9'],
      ['fd65::7', 'fd65::8'],
    ] as const) {
      under.fixture.addFlow({ source, destination, protocol: 'udp', port: 53 });
    }
    expect(await under.fixture.kernel.deleteFlows('10.65.0.7')).toBe(2);
    expect(await under.fixture.kernel.deleteFlows('10.65.0.7')).toBe(0);
    expect(under.fixture.flowCount()).toBe(2);
    expect(await under.fixture.kernel.deleteFlows('fd65::8')).toBe(1);
    expect(under.fixture.flowCount()).toBe(1);
  });

  test('flows to a port are deleted, of both families, and flows of other ports and protocols stay', async () => {
    for (const [protocol, port] of [
      ['udp', 53],
      ['udp', 54],
      ['tcp', 53],
    ] as const) {
      under.fixture.addFlow({ source: '10.65.0.7', destination: '10.65.0.8', protocol, port });
      under.fixture.addFlow({ source: 'fd65::7', destination: 'fd65::8', protocol, port });
    }
    expect(await under.fixture.kernel.deletePortFlows('udp', [53, 55])).toBe(2);
    expect(await under.fixture.kernel.deletePortFlows('udp', [53, 55])).toBe(0);
    expect(under.fixture.flowCount()).toBe(4);
  });

  test('after close calls fail instead of waiting', async () => {
    await under.fixture.kernel.close();
    await under.fixture.kernel.close();
    await expect(under.fixture.kernel.hostLink(HOST)).rejects.toThrow('closed');
  });
}
