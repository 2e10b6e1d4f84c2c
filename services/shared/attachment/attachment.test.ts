import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { attachments } from '../testing/attachments.js';
import {
  attachmentFaults,
  formatAttachment,
  interfaceNameFault,
  MAX_CONTAINER_ID_BYTES,
  MAX_INTERFACE_NAME_BYTES,
  MAX_NETWORK_BYTES,
  parseAttachment,
  podInterfaceNameFault,
} from './attachment.js';

const VALID = { network: 'podwire', containerId: 'c0ffee', interfaceName: 'eth0' };

describe('network and container ID', () => {
  test.each(['', '-a', '_a', '.a', 'a b', 'a/b', 'a:b', 'a\n', 'ä', 'a\0', ' a', '../a'])('refuses %j', (text) => {
    const fields = (fault: { field: string }) => fault.field;
    expect(attachmentFaults({ ...VALID, network: text }).map(fields)).toEqual(['network']);
    expect(attachmentFaults({ ...VALID, containerId: text }).map(fields)).toEqual(['containerId']);
  });

  test.each([
    ['network', MAX_NETWORK_BYTES],
    ['containerId', MAX_CONTAINER_ID_BYTES],
  ] as const)('%s is accepted up to %i bytes', (field, maxBytes) => {
    expect(attachmentFaults({ ...VALID, [field]: 'a'.repeat(maxBytes) })).toEqual([]);
    const reason = `is longer than ${maxBytes} bytes`;
    expect(attachmentFaults({ ...VALID, [field]: 'a'.repeat(maxBytes + 1) })).toEqual([{ field, reason }]);
  });

  test('every invalid part is named', () => {
    const faults = attachmentFaults({ network: '', containerId: '/', interfaceName: 'lo' });
    expect(faults.map(({ field }) => field)).toEqual(['network', 'containerId', 'interfaceName']);
    expect(faults.filter(({ reason }) => reason === '')).toEqual([]);
  });
});

describe('interface name', () => {
  // Linux 6.18 refuses each (`ip link add name NAME type veth`), except "eth%d", of which it makes eth0, and
  // white space beyond ASCII, which the CNI specification's library refuses.
  test.each([
    '',
    '.',
    '..',
    'a/b',
    'a:b',
    'a b',
    'a\tb',
    'a\n',
    'a\u000bb',
    'a\0b',
    'eth%d',
    'a%b',
    'all',
    'default',
    'à',
    'a\u00a0b',
    'a\u0085b',
    'a\u2028b',
    'a\u3000b',
    '1234567890123456',
    'ééééééé11',
  ])('%j is refused', (name) => {
    expect(interfaceNameFault(name)).toMatch(/^(is|must|contains) /);
    expect(podInterfaceNameFault(name)).toBe(interfaceNameFault(name));
  });

  test.each(['eth0', 'a', '123456789012345', 'net1.100', 'veth-x_y', 'áb', 'ALL', '...', 'lo0'])(
    '%j is taken',
    (name) => {
      expect(podInterfaceNameFault(name)).toBeUndefined();
    },
  );

  test('the loopback interface is refused as a pod interface only', () => {
    expect(interfaceNameFault('lo')).toBeUndefined();
    expect(podInterfaceNameFault('lo')).toMatch(/loopback/);
  });
});

describe('text', () => {
  test('is read back to the same attachment, and fits into an interface alias', () => {
    fc.assert(
      fc.property(attachments, (attachment) => {
        const text = formatAttachment(attachment);
        expect(parseAttachment(text)).toEqual(attachment);
        expect(text.split('/')).toEqual([attachment.network, attachment.containerId, attachment.interfaceName]);
      }),
    );
    expect(MAX_NETWORK_BYTES + 1 + MAX_CONTAINER_ID_BYTES + 1 + MAX_INTERFACE_NAME_BYTES).toBeLessThanOrEqual(255);
  });

  test.each(['', 'a', 'a/b', 'a/b/', '/b/c', 'a//c', 'a/b/c/d', 'a/b/c/', 'a/b/lo', '-a/b/c', ' a/b/c', 'a/b/c\n'])(
    '%j is not an attachment',
    (text) => {
      expect(parseAttachment(text)).toBeUndefined();
    },
  );
});
