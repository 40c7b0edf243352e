// The search runs in a Worker, which a browser does not start from a file:// page. There, an invisible frame runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      // What the script says comes back through this function: a file's frame has no origin that messages could name.
      this.frame.contentWindow.postMessageOfWorker = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      const frame = this.frame.contentDocument;
      frame.open();
      frame.write("<script>" +
        "function importScripts(...urls) {" +
        "  return urls.reduce((last, url) => last.then(() => new Promise((done, failed) => {" +
        "    const script = document.createElement('script');" +
        "    script.src = url; script.onload = done; script.onerror = failed;" +
        "    document.body.appendChild(script);" +
        "  })), Promise.resolve());" +
        "}" +
        "window.postMessage = window.postMessageOfWorker;" +
        "<\/script><body></body>");
      frame.close();
      this.waiting = [];
      const script = frame.createElement("script");
      script.src = url;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        for (const data of waiting) this.postMessage(data);
      };
      frame.body.appendChild(script);
    }

    postMessage(data) {
      if (this.waiting) {
        this.waiting.push(data);
        return;
      }
      const Event = this.frame.contentWindow.MessageEvent;
      this.frame.contentWindow.dispatchEvent(new Event("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
