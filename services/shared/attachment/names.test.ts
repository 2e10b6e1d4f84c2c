import fc from 'fast-check';
import { expect, test } from 'vitest';

import { parseMac } from '../net/mac.js';
import { attachments } from '../testing/attachments.js';
import { interfaceNameFault, type Attachment } from './attachment.js';
import { derivedNames, endpointNames, handleId, HOST_MAC, hostInterfaceName, podMac } from './names.js';

const ATTACHMENT = { network: 'podwire', containerId: 'c0ffee', interfaceName: 'eth0' };

test('the host interface fills the 15 bytes that the kernel has for a name', () => {
  fc.assert(
    fc.property(attachments, (attachment) => {
      expect(hostInterfaceName(attachment)).toMatch(/^podw[0-9a-f]{11}$/);
      expect(interfaceNameFault(hostInterfaceName(attachment))).toBeUndefined();
    }),
  );
});

test("a pod's MAC address is a local unicast address", () => {
  fc.assert(
    fc.property(attachments, (attachment) => {
      expect(parseMac(podMac(attachment))).toBe(podMac(attachment));
      expect(Number.parseInt(podMac(attachment).slice(0, 2), 16) & 0b11).toBe(0b10);
    }),
  );
  expect(parseMac(HOST_MAC)).toBe(HOST_MAC);
});

// Fixed values, because an interface of an older release has to be found by the next one.
test('names are the same in every release', () => {
  const names = [hostInterfaceName(ATTACHMENT), podMac(ATTACHMENT), handleId(ATTACHMENT)];
  expect(names).toEqual(['podwaaebae2a3f2', '3a:c8:09:d7:aa:3a', 'podwire.c0ffee']);
});

test.each([
  ['network', { ...ATTACHMENT, network: 'podwire2' }],
  ['container', { ...ATTACHMENT, containerId: 'c0ffee2' }],
  ['interface', { ...ATTACHMENT, interfaceName: 'eth1' }],
  ['border between the parts', { ...ATTACHMENT, containerId: 'c0ffe', interfaceName: 'eeth0' }],
])('another %s has other names', (_, other) => {
  expect(hostInterfaceName(other)).not.toBe(hostInterfaceName(ATTACHMENT));
  expect(podMac(other)).not.toBe(podMac(ATTACHMENT));
});

test('names of different attachments differ', () => {
  fc.assert(
    fc.property(fc.uniqueArray(attachments, { minLength: 2, selector: (each) => JSON.stringify(each) }), (all) => {
      expect(new Set(all.map(hostInterfaceName)).size).toBe(all.length);
      expect(new Set(all.map(podMac)).size).toBe(all.length);
    }),
  );
});

test('the handle is shared by the interfaces of one container on one network', () => {
  expect(handleId({ ...ATTACHMENT, interfaceName: 'eth1' })).toBe(handleId(ATTACHMENT));
  expect(handleId({ ...ATTACHMENT, containerId: 'other' })).not.toBe(handleId(ATTACHMENT));
});

const UUID_8 = /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

const endpointUid = (attachment: Attachment, createdAtMs: number): string => endpointNames(attachment, createdAtMs).uid;

test('the UID of an endpoint is a UUID, a new one for each creation of an attachment', () => {
  const uid = endpointUid(ATTACHMENT, 1000);
  expect(uid).toMatch(UUID_8);
  expect(endpointUid({ ...ATTACHMENT }, 1000)).toBe(uid);
  expect(endpointUid(ATTACHMENT, 1001)).not.toBe(uid);
  expect(endpointUid({ ...ATTACHMENT, interfaceName: 'eth1' }, 1000)).not.toBe(uid);
});

test('the UID is a UUID for every time that a Date can hold', () => {
  const times = fc.integer({ min: -8.64e15, max: 8.64e15 });
  fc.assert(
    fc.property(attachments, times, (attachment, at) => {
      expect(endpointUid(attachment, at)).toMatch(UUID_8);
    }),
  );
});

test('all names together equal the names computed one by one', () => {
  fc.assert(
    fc.property(attachments, fc.nat(), (attachment, at) => {
      const names = { hostInterfaceName: hostInterfaceName(attachment), mac: podMac(attachment) };
      expect(derivedNames(attachment)).toEqual(names);
      expect(endpointNames(attachment, at)).toEqual({ uid: expect.stringMatching(UUID_8), ...names });
    }),
  );
});
