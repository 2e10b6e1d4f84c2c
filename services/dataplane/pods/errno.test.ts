import { describe, expect, test } from 'vitest';

import { kernelFailure, openFailure } from './errno.js';

const refusal = (operation: string, errno: string) => ({
  operation,
  object: 'veth podw1 peer eth0',
  errno,
  message: `${operation} veth podw1 peer eth0: ${errno}: the kernel’s own words`,
});

describe('an errno becomes a failure', () => {
  test.each([
    ['link.add', 'EEXIST', 'INTERFACE_EXISTS'],
    ['link.add', 'EOPNOTSUPP', 'KERNEL_UNSUPPORTED'],
    ['link.add', 'EPERM', 'KERNEL_REFUSED'],
    ['route.add', 'EEXIST', 'ROUTE_TAKEN'],
    ['address.add', 'EEXIST', 'KERNEL_REFUSED'],
    ['address.add', 'EAFNOSUPPORT', 'KERNEL_UNSUPPORTED'],
    ['sysctl.write', 'ENOENT', 'KERNEL_UNSUPPORTED'],
    ['sysctl.write', 'EROFS', 'KERNEL_REFUSED'],
    ['route.delete', 'ENOENT', 'KERNEL_REFUSED'],
    ['qdisc.replace', 'ENOENT', 'KERNEL_UNSUPPORTED'],
    ['qdisc.delete', 'ENOENT', 'KERNEL_REFUSED'],
  ])('%s %s: %s', (operation, errno, code) => {
    const failure = kernelFailure(refusal(operation, errno));
    expect(failure).toMatchObject({ code, details: { operation, errno, object: 'veth podw1 peer eth0' } });
    expect(failure.message).toContain('the kernel’s own words');
  });

  test('a missing IPv6 setting is reported as a kernel without IPv6; a missing IPv4 setting is not', () => {
    const missing = (object: string) => kernelFailure({ ...refusal('sysctl.write', 'ENOENT'), object }).message;
    expect(missing('net.ipv6.conf.podw1.disable_ipv6')).toMatch(/this kernel has no IPv6; give the pod IPv4/);
    expect(missing('net.ipv4.conf.podw1.proxy_arp')).not.toContain('IPv6');
  });

  test('a kernel without tbf is reported with the module', () => {
    expect(kernelFailure(refusal('qdisc.replace', 'ENOENT')).message).toContain('modprobe sch_tbf');
  });

  test.each([
    ['ENOENT', 'INVALID_NETNS', 'does not exist'],
    ['ENOTDIR', 'INVALID_NETNS', 'does not exist'],
    ['EINVAL', 'INVALID_NETNS', 'is not a network namespace'],
    ['EACCES', 'INVALID_NETNS', 'cannot be read'],
    ['EMFILE', 'KERNEL_REFUSED', 'EMFILE'],
    ['EPERM', 'KERNEL_REFUSED', 'EPERM'],
  ])('opening a namespace, %s: %s', (errno, code, text) => {
    const failure = openFailure('/run/netns/a', refusal('namespace.open', errno));
    expect(failure.code).toBe(code);
    expect(failure.message).toContain(text);
  });
});
