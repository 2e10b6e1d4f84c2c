import { listEndpoints, type EndpointPage, type EndpointQuery } from '../allocator/endpoints.js';
import { read, type IpamOptions } from './options.js';

/** Shows which attachment holds what. */
export class Endpoints {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  list(query: EndpointQuery, signal: AbortSignal): Promise<EndpointPage> {
    return read(this.#options, (view) => listEndpoints(view, query), signal);
  }
}
