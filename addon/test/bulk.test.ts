import { describe, expect, it } from 'vitest';

import { openNamespace, type RouteRequest } from '../lib/index.js';
import { ADDON_FOLDER, codes, makePod, open, run } from './ip.js';

const COUNT = 10_000;
/** Each has host bits, which the kernel refuses. */
const WRONG_EVERY = 1000;

function blackhole(n: number, type: RouteRequest['type']): RouteRequest {
  const destination = `10.${n >> 10}.${(n >> 2) & 255}.${(n & 3) << 6}/26`;
  return { type, destination, routeType: 'blackhole', protocol: 80 };
}

function requests(type: RouteRequest['type']): RouteRequest[] {
  return Array.from({ length: COUNT }, (_, n) => {
    const right = blackhole(n, type);
    return n % WRONG_EVERY === WRONG_EVERY - 1 ? { ...right, destination: '10.0.0.1/8' } : right;
  });
}

const EXPECTED = Array.from({ length: COUNT }, (_, n) => (n % WRONG_EVERY === WRONG_EVERY - 1 ? 'EINVAL' : 'ok'));

describe('ten thousand routes', () => {
  it('are added, listed and deleted by one batch each, with an outcome for each in its place', async () => {
    const pod = makePod();
    const inside = await open(pod.path);
    expect(codes(await inside.batch(requests('route.add')))).toEqual(EXPECTED);
    const listed = await inside.routes({ family: 4, protocol: 80 });
    expect(listed).toHaveLength(COUNT - COUNT / WRONG_EVERY);
    expect(new Set(listed.map(({ destination }) => destination)).size).toBe(listed.length);
    expect(run('ip', '-n', pod.name, 'route', 'show', 'protocol', '80').trim().split('\n')).toHaveLength(listed.length);
    expect(await inside.routes({ family: 4, protocol: 81 })).toEqual([]);
    expect(await inside.routes({ destination: '10.1.2.64/26' })).toMatchObject([{ destination: '10.1.2.64/26' }]);
    for (const destination of ['10.1.2.64/27', '10.1.2.65/26', '0.0.0.0/0', '::/0', 'fd65::7/128'])
      expect(await inside.routes({ destination })).toEqual([]);
    expect(codes(await inside.batch(requests('route.delete')))).toEqual(EXPECTED);
    expect(await inside.routes({ protocol: 80 })).toEqual([]);
  });

  it('are refused as a whole when one of them is invalid', async () => {
    const inside = await open(makePod().path);
    const wrong = { ...blackhole(1, 'route.add'), metric: -1 };
    await expect(inside.batch([...requests('route.add'), wrong])).rejects.toMatchObject({
      path: `requests[${COUNT}].metric`,
    });
    expect(await inside.routes({ protocol: 80 })).toEqual([]);
  });

  it('let other calls run between them, and complete when the namespace is closed meanwhile', async () => {
    const { path } = makePod();
    const [inside, beside] = [await openNamespace(path), await open(path)];
    const order: string[] = [];
    const batch = inside.batch(requests('route.add')).finally(() => order.push('batch'));
    const links = inside.links().finally(() => order.push('links'));
    await links;
    await inside.close();
    expect(codes(await batch)).toEqual(EXPECTED);
    expect(order).toEqual(['links', 'batch']);
    expect(await beside.routes({ protocol: 80 })).toHaveLength(COUNT - COUNT / WRONG_EVERY);
  });
});

describe('a socket with the small buffers of a process without CAP_NET_ADMIN', () => {
  it('gets all answers of a batch, as it sends no more at once than fits', () => {
    const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      const get = { op: 'link.get', optional: false, within: null, link: { index: 1, name: null } };
      binding.openNamespace(null)
        .then((own) => own.run(Array(1000).fill(get), { sequential: false, timeoutMs: 1000 }))
        .then((outcomes) => console.log(outcomes.filter(({ link }) => link?.name === 'lo').length));`;
    const without = ['--bounding-set=-net_admin', '--inh-caps=-net_admin'];
    expect(run('setpriv', ...without, process.execPath, '-e', script).trim()).toBe('1000');
  });
});
