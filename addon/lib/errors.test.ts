import { describe, expect, it } from 'vitest';

import { ArgumentError, NamespaceClosedError, NetlinkError } from './errors.js';

const details = { operation: 'link.add', object: 'veth podw0 peer eth0', kernelMessage: undefined };

describe('NetlinkError', () => {
  it('has operation, object, errno name, its meaning and the text of the kernel', () => {
    const error = new NetlinkError({ ...details, errno: 17, kernelMessage: 'the name is taken' });
    expect(error.message).toBe('link.add veth podw0 peer eth0: EEXIST (file already exists): the name is taken');
    expect(error).toMatchObject({ ...details, errno: 17, code: 'EEXIST', kernelMessage: 'the name is taken' });
  });

  it.each([
    [1, 'EPERM', 'CAP_NET_ADMIN'],
    [30, 'EROFS', 'mount /proc/sys read-write'],
    [95, 'EOPNOTSUPP', 'load the module'],
    [110, 'ETIMEDOUT', 'read it back'],
  ])('names the next step for errno %i, %s', (errno, code, nextStep) => {
    const error = new NetlinkError({ ...details, errno });
    expect(error.code).toBe(code);
    expect(error.message).toContain(nextStep);
  });

  it('keeps the number of an unknown errno', () => {
    expect(new NetlinkError({ ...details, errno: 512 }).code).toBe('errno 512');
  });
});

it('the other errors name their object', () => {
  expect(new ArgumentError('requests[2].peer.mac', 'must be a MAC address').message).toBe(
    'requests[2].peer.mac: must be a MAC address',
  );
  expect(new NamespaceClosedError('/run/netns/a').message).toContain('/run/netns/a is closed');
});
