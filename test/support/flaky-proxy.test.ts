import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { FlakyProxy } from './flaky-proxy.js';

/** Not `once`, which takes the earlier reset for its own failure. */
function closing(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

describe('a flaky proxy', () => {
  const echo = createServer((socket) => socket.on('error', () => undefined).pipe(socket));
  let proxy: FlakyProxy;
  const clients: Socket[] = [];

  const dial = (): Socket => {
    const client = connect(proxy.port, '127.0.0.1').on('error', () => undefined);
    clients.push(client);
    return client;
  };

  beforeEach(async () => {
    echo.listen(0, '127.0.0.1');
    await once(echo, 'listening');
    const address = echo.address();
    if (address === null || typeof address === 'string') throw new Error('the echo server does not listen');
    proxy = await FlakyProxy.start(address.port);
  });

  afterEach(async () => {
    for (const client of clients.splice(0)) client.destroy();
    await proxy.close();
    echo.close();
  });

  it('passes bytes both ways', async () => {
    const client = dial();
    client.write('hello');
    expect(String((await once(client, 'data'))[0])).toBe('hello');
  });

  it('cuts open connections, and lets new ones through', async () => {
    const client = dial();
    await once(client, 'connect');
    client.write('hello');
    await once(client, 'data');
    const closed = closing(client);
    proxy.cut();
    await closed;
    expect(proxy.cuts).toBe(2);
    const again = dial();
    again.write('again');
    expect(String((await once(again, 'data'))[0])).toBe('again');
  });

  it('refuses connections', async () => {
    proxy.mode = 'refusing';
    const client = dial();
    await closing(client);
  });

  it('holds bytes while it is silent, and passes them when it opens', async () => {
    const client = dial();
    client.write('one');
    await once(client, 'data');
    proxy.mode = 'silent';
    let got = '';
    client.on('data', (chunk) => (got += String(chunk)));
    client.write('two');
    await sleep(100);
    expect(got).toBe('');
    proxy.mode = 'open';
    await once(client, 'data');
    expect(got).toBe('two');
  });
});
