import { expect, test } from 'vitest';

import { readNamespace, readPod } from './pods.js';

const METADATA = { name: 'web', namespace: 'default', uid: 'u1' };

test('a pod as the API server has it, with the names of ports of all containers', () => {
  const pod = readPod({
    metadata: { ...METADATA, labels: { app: 'web' }, annotations: { other: '1' }, managedFields: [] },
    spec: {
      nodeName: 'n1',
      containers: [{ image: 'a', ports: [{ name: 'http', containerPort: 80 }, { containerPort: 81 }] }],
      initContainers: [{ ports: [{ name: 'dns', containerPort: 53, protocol: 'UDP' }] }],
    },
    status: { phase: 'Running', podIP: '10.0.0.1', podIPs: [{ ip: '10.0.0.1' }, { ip: 'fd00::1' }] },
  });
  expect(pod).toEqual({
    ...{ namespace: 'default', name: 'web', uid: 'u1', nodeName: 'n1', isNetworked: true, labels: { app: 'web' } },
    ports: [
      { name: 'http', protocol: 6, port: 80 },
      { name: 'dns', protocol: 17, port: 53 },
    ],
    reportedAddresses: ['10.0.0.1', 'fd00::1'],
  });
});

test('a pod that is new has neither a node, labels nor addresses', () => {
  expect(readPod({ metadata: METADATA, spec: { containers: [] } })).toEqual({
    ...{ namespace: 'default', name: 'web', uid: 'u1', nodeName: '', isNetworked: true },
    ...{ labels: {}, ports: [], reportedAddresses: [] },
  });
});

test('a static pod has the hash of its file as UID, which only kubelets may set', () => {
  const hash = { 'kubernetes.io/config.hash': 'h1' };
  const annotations = { ...hash, 'kubernetes.io/config.mirror': 'h1' };
  expect(readPod({ metadata: { ...METADATA, annotations }, spec: {} })?.uid).toBe('h1');
  expect(readPod({ metadata: { ...METADATA, annotations: hash }, spec: {} })?.uid).toBe('u1');
});

test('only pods on their own network that have not finished count', () => {
  const isNetworked = (spec: object, phase: string) =>
    readPod({ metadata: METADATA, spec, status: { phase } })?.isNetworked;
  expect(isNetworked({}, 'Pending')).toBe(true);
  expect(isNetworked({ hostNetwork: true }, 'Running')).toBe(false);
  expect(isNetworked({}, 'Succeeded')).toBe(false);
  expect(isNetworked({}, 'Failed')).toBe(false);
});

test('other objects are left out', () => {
  expect(readPod({ metadata: { name: 'web' } })).toBeUndefined();
  expect(readNamespace({ metadata: {} })).toBeUndefined();
  expect(readNamespace({ metadata: { name: 'default', labels: null } })).toEqual({ name: 'default', labels: {} });
});
