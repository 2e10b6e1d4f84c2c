import { afterAll, beforeAll } from 'vitest';

import { openEtcdStore } from '../testing/etcd-faults.js';
import { EtcdServer } from '../testing/etcd-server.js';
import { describeStoreContract } from '../testing/store-contract.js';

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
