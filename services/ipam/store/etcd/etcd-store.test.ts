import { afterAll, beforeAll } from 'vitest';

import { describeStoreContract } from '../store.contract.js';
import { EtcdServer } from './etcd-server.fixture.js';
import { openEtcdStore } from './etcd-store.fixture.js';

let server: EtcdServer;
beforeAll(async () => {
  server = await EtcdServer.start();
});
afterAll(() => server.dispose());

describeStoreContract('the etcd store', async () => {
  server.ctl('del', '--prefix', '');
  const store = await openEtcdStore([server]);
  return {
    store,
    forgetChanges: () => {
      server.compact();
      return Promise.resolve();
    },
    dispose: () => store.close(),
  };
});
