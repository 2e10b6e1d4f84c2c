import { listEndpoints, type EndpointPage, type EndpointQuery } from '../endpoints/endpoints.js';
import { read, type IpamOptions } from '../engine/updates/operation.js';

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
