import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import { nodePodCidrs, withPodCidrs } from './pod-cidr.js';

const delegate = (ipam: object, type = 'host-local') => ({
  type,
  variables: {},
  configuration: JSON.stringify({ name: 'net', ipam: { type, ...ipam }, later: 1 }),
});
const PLACES = {
  subnet: 'usePodCidr',
  ranges: [[{ subnet: 'usepodcidr' }], [{ subnet: 'usePodCidrIPv6', gateway: 'g' }]],
};
const limits = { deadlineMs: 0, signal: new AbortController().signal };

test.each([
  [() => Promise.resolve(['10.1.0.0/24', 'fd01::/64']), '10.1.0.0/24', 'fd01::/64'],
  [undefined, '0.0.0.0/0', '::/0'],
])('the podCIDRs replace their words in both layouts', async (podCidrs, four, six) => {
  expect(JSON.parse((await withPodCidrs(delegate(PLACES), podCidrs)).configuration)).toEqual({
    name: 'net',
    ipam: { type: 'host-local', subnet: four, ranges: [[{ subnet: four }], [{ subnet: six, gateway: 'g' }]] },
    later: 1,
  });
});

test('a missing podCIDR is refused with its family and its setting', async () => {
  const replaced = withPodCidrs(delegate(PLACES), () => Promise.resolve(['10.1.0.0/24']));
  await expect(replaced).rejects.toMatchObject({
    code: 'INVALID_CONFIG',
    message: expect.stringMatching(/IPv6 podCIDR, which neither its Node nor PODWIRE_NODE_POD_CIDR has/),
  });
});

test('other configurations and other plugins stay as they are, and ask for no podCIDR', async () => {
  const unasked = () => Promise.reject(new Error('asked'));
  for (const one of [
    delegate({ subnet: '10.0.0.0/24' }),
    delegate(PLACES, 'whereabouts'),
    delegate({ ranges: 'usePodCidr' }),
  ]) {
    expect(await withPodCidrs(one, unasked)).toBe(one);
  }
});

test('the podCIDRs of the settings win; the Node’s are read until it has some', async () => {
  const answers = [[], ['10.1.0.0/24']];
  const asked: string[] = [];
  const ipam = { podCidrs: (name: string) => Promise.resolve(answers[asked.push(name) - 1] ?? []) };
  const ofNode = nodePodCidrs([], ipam, 'worker-1');
  expect([await ofNode(limits), await ofNode(limits), await ofNode(limits)]).toEqual([[], answers[1], answers[1]]);
  expect(asked).toEqual(['worker-1', 'worker-1']);
  expect(await nodePodCidrs(['10.9.0.0/24'], ipam, 'worker-1')(limits)).toEqual(['10.9.0.0/24']);
  expect(asked).toHaveLength(2);
});

test('a failure of podwire-ipam keeps its code and names the setting', async () => {
  const ipam = { podCidrs: () => Promise.reject(new Failure('UNREACHABLE', 'podwire-ipam at unix:/i.sock: ENOENT')) };
  await expect(nodePodCidrs([], ipam, 'worker-1')(limits)).rejects.toMatchObject({
    code: 'UNREACHABLE',
    message: expect.stringMatching(/unix:\/i\.sock: ENOENT; or set PODWIRE_NODE_POD_CIDR/),
  });
});
