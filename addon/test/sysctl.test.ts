import { constants } from 'node:os';

import { describe, expect, it } from 'vitest';

import { setProcDirectory } from '../lib/index.js';
import { ADDON_FOLDER, codes, link0, makePod, noLink, open, run, vethPair } from './ip.js';

/** A sysctl of each namespace, without effect on tests that run at the same time. */
const TTL = ['net', 'ipv4', 'ip_default_ttl'];

function sysctlIn(pod: string, key: string): string {
  return run('ip', 'netns', 'exec', pod, 'sysctl', '-n', key).trim();
}

describe('sysctls', () => {
  it('belong to the namespace, not to the process', async () => {
    const pod = makePod();
    const [host, inside] = [await open(), await open(pod.path)];
    expect(codes(await host.writeSysctls([{ key: TTL, value: '61' }]))).toEqual(['ok']);
    expect(codes(await inside.writeSysctls([{ key: TTL, value: '62' }]))).toEqual(['ok']);
    expect(sysctlIn(pod.name, 'net.ipv4.ip_default_ttl')).toBe('62');
    expect(run('sysctl', '-n', 'net.ipv4.ip_default_ttl').trim()).toBe('61');
    expect(await host.readSysctls([TTL])).toEqual([{ ok: true, value: '61' }]);
    expect(await inside.readSysctls([TTL])).toEqual([{ ok: true, value: '62' }]);
  });

  it('take interface names with dots', async () => {
    const [host, pod] = [await open(), await open(makePod().path)];
    const key = ['net', 'ipv4', 'conf', `${link0}.7`, 'proxy_arp'];
    const outcomes = await host.sequence([vethPair(`${link0}.7`, pod), { type: 'sysctl.write', key, value: '1' }]);
    expect(codes(outcomes)).toEqual(['ok', 'ok']);
    expect(await host.readSysctls([key])).toEqual([{ ok: true, value: '1' }]);
  });

  it('fail one by one, with the key in the error, and create nothing', async () => {
    const host = await open();
    const missing = ['net', 'ipv4', 'conf', noLink, 'proxy_arp'];
    const written = await host.writeSysctls([
      { key: missing, value: '62' },
      { key: TTL, value: 'nonsense' },
      { key: TTL, value: '62' },
    ]);
    expect(codes(written)).toEqual(['ENOENT', 'EINVAL', 'ok']);
    expect(written[0]).toMatchObject({
      error: { operation: 'sysctl.write', object: `net.ipv4.conf.${noLink}.proxy_arp` },
    });
    const [read] = await host.readSysctls([missing]);
    expect(read).toMatchObject({ ok: false, error: { code: 'ENOENT', operation: 'sysctl.read' } });
  });

  it('are refused when /proc/sys is read-only', () => {
    // In a separate mount namespace, as other tests need theirs writable.
    const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      const where = { optional: false, within: null, path: 'net/ipv4/ip_default_ttl' };
      const step = { op: 'sysctl.write', ...where, value: '60', readPrevious: false };
      binding.openNamespace(null)
        .then((own) => own.run([step], { sequential: true, timeoutMs: 1000 }))
        .then(([outcome]) => console.log(outcome.error.errno));`;
    const mounted = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"';
    const errno = run('unshare', '--mount', 'sh', '-c', mounted, 'sh', process.execPath, '-e', script).trim();
    expect(Number(errno)).toBe(constants.errno.EROFS);
  });

  it('are written below another mount of proc when that is selected, in the namespace of the handle', async () => {
    const pod = makePod();
    // In a separate process, as the selection is global.
    const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      const where = { optional: false, within: null, path: 'net/ipv4/ip_default_ttl' };
      const step = { op: 'sysctl.write', ...where, value: '71', readPrevious: true };
      binding.setProcDirectory(process.argv[1]);
      binding.openNamespace(process.argv[2])
        .then((pod) => pod.run([step], { sequential: true, timeoutMs: 1000 }))
        .then(([outcome]) => console.log(JSON.stringify(outcome)));`;
    const mounted =
      'mount -t tmpfs tmpfs /mnt && mkdir /mnt/proc && mount --bind /proc /mnt/proc && mount --bind /proc/sys /proc/sys && ' +
      'mount -o remount,bind,ro /proc/sys && exec "$@"';
    const inMounts = (proc: string): unknown =>
      JSON.parse(
        run('unshare', '--mount', 'sh', '-c', mounted, 'sh', process.execPath, '-e', script, proc, pod.path).trim(),
      );
    await (await open(pod.path)).writeSysctls([{ key: TTL, value: '70' }]);
    expect(inMounts('/proc')).toMatchObject({ error: { errno: constants.errno.EROFS } });
    expect(inMounts('/mnt/proc')).toMatchObject({ error: null, previous: '70' });
    expect(sysctlIn(pod.name, 'net.ipv4.ip_default_ttl')).toBe('71');
    expect(() => setProcDirectory('proc')).toThrow('directory: must be an absolute path');
  });

  it('are written by a sequence that began in another namespace', async () => {
    const pod = makePod();
    const [host, inside] = [await open(), await open(pod.path)];
    const outcomes = await host.sequence([
      { type: 'sysctl.write', key: TTL, value: '61' },
      { type: 'sysctl.write', key: TTL, value: '62', within: inside },
      { type: 'sysctl.write', key: TTL, value: '63' },
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok']);
    expect(sysctlIn(pod.name, 'net.ipv4.ip_default_ttl')).toBe('62');
    expect(run('sysctl', '-n', 'net.ipv4.ip_default_ttl').trim()).toBe('63');
  });

  it('are returned with their previous value on request, and are not written where it cannot be read', async () => {
    const inside = await open(makePod().path);
    const host = await open();
    const write = { type: 'sysctl.write', key: TTL, within: inside, readPrevious: true } as const;
    const missing = { ...write, key: ['net', 'ipv4', 'nonsense'], value: '1', optional: true };
    const plain = { type: 'sysctl.write', key: TTL, value: '63', within: inside } as const;
    await inside.writeSysctls([{ key: TTL, value: '61' }]);
    const outcomes = await host.sequence([{ ...write, value: '62' }, missing, plain, { ...write, value: '64' }]);
    expect(codes(outcomes)).toEqual(['ok', 'ENOENT', 'ok', 'ok']);
    expect(outcomes.map((outcome) => outcome.ok && outcome.previous)).toEqual(['61', false, undefined, '63']);
    expect(await inside.readSysctls([TTL])).toEqual([{ ok: true, value: '64' }]);
  });
});
